"""Faults inside the nodes of a test cluster. They need no root and no tools of the system.

- ``control``: the faults of each node as a file, and how a running node is told to read it again
- ``network``: an event loop whose connections to chosen ports are silent
- ``disk``: files of a disk that can be filled
- ``node``: the program of a node with both, run instead of ``riverrun.server``
"""
