"""Scrubbing as it goes on beside everything else."""
