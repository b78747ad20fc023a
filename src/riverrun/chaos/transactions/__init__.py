"""Transactional clients of three libraries and our own, on real processes.

- ``load.py``: starts and stops the clients, and checks what they did and saw
- ``feeders.py``: transactions over several partitions, some of them aborted
- ``chains.py``: read-process-write chains with consumer groups
- ``java_chain.py``, ``JavaChain.java``: such a chain of Apache Kafka's own clients
- ``zombie.py``: a producer in a process of its own, which is paused and replaced
"""
