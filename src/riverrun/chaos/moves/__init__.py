"""Partitions that move while a scenario runs.

- ``mover.py``: reassigns partitions without end, by requests and by plans, and cancels some
- ``leftovers.py``: what moves have left behind: reassignments, plans, throttles, files
"""
