"""Batch and streaming writes.

- ``writer``: the writers that Spark calls, and the work of one task.
- ``task_producer``: one idempotent producer per task.
- ``partitioning``: Kafka's default partitioner, vectorised.
"""
