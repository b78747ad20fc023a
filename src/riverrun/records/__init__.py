"""The record batch (Kafka's format v2): one format for wire, disk and replication.

``batch`` reads and stamps the header in place, ``record`` reads and builds the records inside,
``compression`` has the codecs with Kafka's framing, and ``validate`` checks batches from producers.
No module does I/O. Bad input raises ``CorruptBatch`` or ``KafkaError`` and nothing else.
"""
