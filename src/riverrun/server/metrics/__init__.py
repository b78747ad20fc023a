"""Metrics that need more than a counter beside the code: they are computed when they are read."""
