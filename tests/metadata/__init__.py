"""Tests of the metadata log, its image and its snapshots."""
