"""Benchmarks: a cluster under load by confluent-kafka, and Apache Kafka beside us."""
