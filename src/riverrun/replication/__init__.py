"""Copies of a partition: who may append, what is committed, who waits for it."""
