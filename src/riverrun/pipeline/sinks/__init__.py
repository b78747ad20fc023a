"""From rows to tables, topics and dead letters.

- ``writing``: what happens to the rows of a batch. Executors write, the driver commits.
- ``dead_letters``: invalid records and rows, with the reason, to a topic.
- ``row_counts``: counts rows while Spark writes them.
- ``tables``: Delta, Iceberg and Parquet tables with progress in their commits.
"""
