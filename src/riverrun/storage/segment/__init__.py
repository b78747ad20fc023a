"""Segment files and their indexes: writing, reading, scanning; the list of a log's segments."""
