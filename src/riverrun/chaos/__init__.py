"""Chaos on real processes: a cluster, real clients, faults, and the verdict on what clients saw."""
