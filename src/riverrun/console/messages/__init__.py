"""Messages of a topic: pages in both directions, the live tail, downloads and redriving.

- ``streams``: the records of one partition in one direction; ``reading`` merges all partitions.
- ``cursors``: positions in all partitions as a text; ``positions``: where a selection begins.
- ``payloads``: bytes as text, JSON or hex; ``schemas``: by the schemas of a registry.
- ``tail``, ``download``: streams of messages over HTTP.
- ``dead_letters``: where a dead letter came from.
"""
