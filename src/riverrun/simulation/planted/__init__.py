"""Planted bugs, which prove that the simulation can find bugs.

file_bugs      a ``Files`` port with mistakes in syncing and writing
cluster_bugs   broken rules of raft and replication
"""
