"""Clients that record every operation in the history.

producers        confluent-kafka and aiokafka producers
consumers        members of consumer groups, and an auditor of committed offsets
administrators   an administrator of topics and settings
workload         runs all clients of a scenario
"""
