"""Runs a pipeline: one streaming query per sink.

- ``query``: ``SinkQuery``, the streaming query of one sink; ``context`` holds its fixed inputs.
- ``start``: how a query starts (topics, start offsets, schemas); ``batches``: what it does with
  each micro-batch; ``transforms``: the SQL and Python between sources and sink.
- ``supervisor``: restarts failed queries; ``failures`` classifies errors.
- ``preflight``: checks before Spark starts; ``session``: the Spark session.
- ``status``: status file, stop request and run lock; ``display``: progress on the terminal;
  ``cluster_watch``: detects an unreachable cluster.
"""
