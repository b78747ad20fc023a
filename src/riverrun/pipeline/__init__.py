"""Pipelines on Spark: from topics and files, through SQL or Python, to tables and topics.

- ``command``: ``riverrun pipeline``, the command line.
- ``declaration``: a TOML or YAML file becomes a validated ``Pipeline`` value. No Spark.
- ``offsets``: decides which records of a micro-batch a table still needs. Pure.
- ``topics``: requests to the cluster (metadata, offsets, topic creation).
- ``sources``: records and files become typed rows.
- ``sinks``: rows become table commits, records and dead letters; ``sinks.tables`` has the formats.
- ``state``: files that outlive a driver (checkpoint, start offsets, pinned schemas).
- ``run``: starts, supervises and displays one streaming query per sink.
- ``audit``: ``riverrun audit``, a Spark job that compares all replicas of a partition.

Only ``declaration`` and the command modules load without the ``spark`` extra. They import pyspark,
PyYAML and everything that needs them inside functions, and ``sinks.tables.attempt`` does the same
with pyiceberg. All other imports are at the top of their module.
"""
