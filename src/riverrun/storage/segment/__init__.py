"""One segment: its files, its indexes, reading and scanning."""
