"""Replication of partitions: leaders, followers, in-sync replicas and repair.

- ``partition.py``: one replica: its role, its high watermark, and requests that wait for it
- ``replicas.py``: all replicas of this node, kept in step with the metadata
- ``reading.py``: reads one partition for a fetch of a consumer or follower
- ``leader_state.py``: a leader's followers, its ISR and a pending change of it
- ``isr.py``: the rules for leaving and joining the ISR, as pure functions
- ``follower_progress.py``: the position of one follower, as its leader sees it
- ``peers.py``: metadata about other brokers that leaders use
- ``isr_sender.py``: sends ISR proposals to the controller and checks ISRs periodically
- ``readable_bytes.py``: bytes that become readable with the high and last stable offsets
- ``verification_attempts.py``: verification before the first batch of a transaction
- ``markers.py``: appends transaction markers
- ``fetch_watches.py``: the fetches that a partition wakes
- ``throttle.py``: the rate limit of replicas that catch up
- ``moves/``: verifies new replicas of reassignments, and rolls back reassignments that do harm
- ``offset_waiters.py``: callbacks that wait for an offset
- ``refused_producers.py``: keeps the order of idempotent producers after a refused batch
- ``flusher.py``: flushes for flush.before.ack
- ``settings.py``: settings of leaders
- ``follower/``: fetching from leaders and truncating diverged logs
- ``repair/``: repair of damaged replicas, and hand-over when the disk is full
"""
