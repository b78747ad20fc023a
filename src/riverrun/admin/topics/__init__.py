"""Topics: creation, settings, partitions, positions, trimming."""
