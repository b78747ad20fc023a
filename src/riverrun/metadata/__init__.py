"""Cluster metadata: a log of records, the image they make, its changes and its snapshots."""
