"""Scenarios drawn from a seed: nodes, clients, faults."""
