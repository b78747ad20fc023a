"""Tests of the quorum's core."""
