"""Tables that store, in each commit, the end offsets of the records that they contain.

- ``attempt``: ``TableAttempt``, the interface of the formats, and ``open_table``.
- ``delta``, ``iceberg``, ``parquet``: the formats.
- ``data_files``: executors write Parquet files, which the driver commits.
- ``schema_evolution``: new columns and wider types.
"""
