"""Topics: creation, deletion, names, internal topics."""
