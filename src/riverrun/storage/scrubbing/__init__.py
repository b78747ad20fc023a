"""Scrubbing: checking stored batches in the background."""
