"""Fault injection on real processes, with checks of what real clients saw.

cluster        the nodes as processes;  servers: how riverrun and Apache Kafka nodes are started
cluster_pool   starts clusters for scenarios and reuses healthy ones
clients        producers, consumers and administrators that record what they see
moves          partitions that move meanwhile, and what moves leave behind
history        the recorded operations
probe          reads every replica and the quorum directly
faults         the TCP proxy between nodes and clients, and damage to disks
agent          loaded by a node's interpreter: slow or failing syncs, wrong clocks
scenarios      what happens in a run
checks         anomalies in a history and differences between replicas
runner         runs a scenario and decides its verdict
report         the HTML report;  chart: its SVG charts
command        ``riverrun chaos``
"""
