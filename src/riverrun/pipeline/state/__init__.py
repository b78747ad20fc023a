"""State of a query that outlives its driver: checkpoint, start offsets, pinned schemas."""
