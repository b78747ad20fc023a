"""Batch and streaming reads: planning on the driver, fetching in tasks.

- ``ranges``: offsets become ranges, one per task. Pure.
- ``batch_reader``, ``stream_reader``: the readers that Spark calls.
- ``read_task``: the work of one task; ``prefetch``: fetches ahead of the decoder.
"""
