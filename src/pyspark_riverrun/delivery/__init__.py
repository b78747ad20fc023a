"""Exactly-once delivery to topics: tasks write in transactions, a driver decides and ends them.

- ``record``: the values of a delivery, and how its log stores them. Pure.
- ``requests``: requests to transaction coordinators for transactions of other processes.
- ``log``: the topic that stores the last delivery of each application.
- ``aborted``: finds out how a transaction ended, and reads the records of an aborted one.
- ``driver``: fences other drivers, records the decision, and ends the transactions.
"""
