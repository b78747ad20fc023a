"""Verdicts on recorded histories, replicas and metadata."""
