"""Batch and streaming writes.

- ``writer``: the writers that Spark calls; ``commit`` decides about an exactly-once batch.
- ``task``: the work of one task.
- ``task_producer``: one idempotent or transactional producer per task.
- ``partitioning``: Kafka's default partitioner, vectorised.
"""
