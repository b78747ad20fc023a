"""Retention and compaction: discarding and rewriting closed segments."""
