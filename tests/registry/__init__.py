"""Tests of schemas and of values that name them."""
