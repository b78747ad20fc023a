"""Batch and streaming writes: one idempotent producer per task."""
