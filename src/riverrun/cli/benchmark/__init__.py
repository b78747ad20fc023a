"""Benchmarks: load on a cluster with confluent-kafka, and a comparison with Apache Kafka."""
