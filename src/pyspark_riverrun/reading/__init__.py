"""Batch and streaming reads: planning on the driver, fetching in tasks."""
