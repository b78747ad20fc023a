"""Producers, consumers and administrators that record what they saw."""
