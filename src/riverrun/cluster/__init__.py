"""The controller's judgement: requests and an image in, records and a response out.

Pure but for ``runner.py``. Where to look: who leads in ``leadership.py`` and, for one partition,
``partition_change.py``; who is alive in ``sessions.py``; who is in sync in ``alter_partition.py``.
"""
