"""Runs drawn from a seed.

plans              settings, clients and faults of a run, and its outcome
workload           aiokafka clients;  cluster_workload: an administrator for clusters
node_scenario      one node under faults
cluster_scenario   a cluster under faults
"""
