"""Partitions and their replicas: placement, elections, in-sync sets."""
