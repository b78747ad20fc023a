"""Runs a pipeline: one streaming query per sink.

- ``foreground``: the main thread of a run, with signals, status file and display; ``driver``: the
  thread that calls Spark.
- ``supervisor``: restarts failed queries; ``failures`` classifies errors.
- ``query``: ``SinkQuery``, the streaming query of one sink; ``context`` holds its fixed inputs.
- ``start``: how a query starts (topics, start offsets, schemas); ``batches``: what it does with
  each micro-batch; ``transforms``: the SQL and Python between sources and sink.
- ``preflight``: checks before Spark starts; ``sql_check``: checks SQL and columns before queries
  start; ``analysis`` explains errors of Spark's analyzer.
- ``session``, ``spark_log``: the Spark session and the file with its output; ``short_job``: Spark
  for commands that end by themselves.
- ``status``: status file, stop request and run lock; ``display``: progress on the terminal;
  ``cluster_watch``: the lag, and detection of an unreachable cluster.
"""
