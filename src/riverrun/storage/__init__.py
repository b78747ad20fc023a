"""Logs on disk, in Kafka's file formats.

One partition's log:

- ``log``: append, read, flush, truncate; the invariants between the parts below
- ``append``: limits for batches, when a log rolls, validation of a leader's batches
  (``records.validate`` validates the batches of clients)
- ``log_reader``: reads from the page cache, cold reads, searches by timestamp
- ``flush``: which files a flush syncs; the flushed offset and the recovery point
- ``producers``, ``producer_snapshots``: sequence numbers and transactions
- ``leader_epochs``: start offsets of leader epochs
- ``segment/``: segment files, the list of segments, indexes, reading and scanning of batches

A node's data directory:

- ``directory``: its logs; ``identity``: meta.properties; ``checkpoints``: files of offsets
- ``log_manager``: threads, group commit, periodic tasks, the clean stop
- ``recovery/``: opens a log after a crash or a clean stop
- ``cleaning/``: retention and compaction; ``scrubbing/``: checks in the background
- ``worker``: the process that compacts and scrubs
- ``removal``: removes deleted files; ``space_monitor``: detects a full disk
- ``settings``: settings of topics, directories, compaction and scrubbing
"""
