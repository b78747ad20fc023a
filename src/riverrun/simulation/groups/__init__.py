"""Simulated groups of the consumer protocol (KIP-848), and the check of their promises.

- ``run.py``: names, progress and connections that all clients of these groups share
- ``ledger.py``: who owns which partition, and which offsets are committed; finds violations
- ``workers.py``: members of the consumer protocol that join, crash, return and change topics
- ``mixers.py``: members that use the consumer protocol in one life and the classic one in another
- ``keeper.py``: creates, grows and deletes topics, and writes the records that members read
- ``auditor.py``: describes the groups all the time; what was once described is durable
- ``stage.py``: adds the clients to a scenario and checks the result after the faults
"""
