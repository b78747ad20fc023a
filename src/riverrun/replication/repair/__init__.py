"""Repair of damaged replicas, and hand-over of leadership when the disk is full."""
