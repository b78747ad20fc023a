"""A small Kafka client: used by the command line, by nodes among themselves, and by PySpark.

- ``connection.py``: one connection with pipelined requests and decoded responses
- ``stream.py``: one connection that returns large responses without a copy, for followers
- ``pool.py``: all connections to a cluster; finds leaders and coordinators, and retries
- ``retry.py``: which errors are retried, how often, with which delays
- ``partitions.py``: produce and fetch batches of one partition
- ``producer.py``, ``partitioner.py``: write records to a topic in batches
- ``transactions.py``: write records and a group's offsets in transactions
- ``fetcher.py``: read many partitions, with read_committed where wanted
- ``offsets.py``: list log offsets; fetch and commit offsets of a group
- ``consumer_member.py``, ``consumer_protocol.py``, ``assignors.py``: membership in a consumer group
"""
