"""Digests of a log's content, to compare the copies of a partition."""
