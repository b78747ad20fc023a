"""State of a query that outlives its driver.

- ``checkpoint``: Spark's checkpoint of a query, and the start offsets stored in it.
- ``start_offsets``: where a query starts, decided once.
- ``versioned_file``: a small text with atomic updates; ``hadoop_files`` stores it where only Spark
  can write.
"""
