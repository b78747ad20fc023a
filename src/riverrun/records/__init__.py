"""The record batch (Kafka's format v2): one format for wire, disk and replication.

``batch`` reads and stamps the header in place, ``record`` looks inside, ``compression`` has the
codecs with Kafka's framing, ``validate`` judges what a producer sent. Nothing here does input or
output, and bad bytes cost a ``CorruptBatch`` or a ``KafkaError``, never anything else.
"""
