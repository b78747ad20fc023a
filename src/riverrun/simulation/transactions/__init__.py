"""Simulated clients that use transactions, and the audit of what they wrote.

- ``run.py``: progress and history that all transactional clients of a run share
- ``feeders.py``: transactions over several partitions, with aborts, abandoned ones and zombies
- ``chains.py``: read-process-write chains from one topic to another, as members of a group
- ``stage.py``: adds the clients to a scenario and checks the result after the faults
- ``audit.py``: reads everything with read_committed, during the run and at its end
"""
