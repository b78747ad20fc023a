"""Connections to a cluster, and the requests that planning sends.

- ``link``: connections of a process, used from threads outside an event loop.
- ``planner``: subscribed partitions and their offsets.
"""
