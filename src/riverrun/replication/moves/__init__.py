"""Moves of partitions, on the nodes that copy them.

- ``verification.py``: the leader compares a new replica with its own log before it may join
- ``copy_check.py``: the new replica's side of the comparison
- ``rules.py``: when a move is rolled back
- ``rollback.py``: checks the rules and asks the controller to cancel
"""
