"""Compares all copies (replicas) of all partitions by reading every one of them.

- ``command``: ``riverrun audit``.
- ``replicas``: the Spark job, which finds and compares the copies.
- ``replica_reader``: runs in executors and reads one copy from its node.
"""
