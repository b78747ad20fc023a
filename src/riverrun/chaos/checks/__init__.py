"""Checks of recorded histories and of replicas.

anomalies         what can be wrong
record_checks     records, reads and committed offsets
metadata_checks   topics, settings and quorum leaders
replica_checks    the files of replicas
availability      throughput, and windows without an acknowledgement
"""
