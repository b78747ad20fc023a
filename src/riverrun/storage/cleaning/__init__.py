"""Retention and compaction: which segments and records are removed, and how."""
