"""The group coordinator: groups of both protocols, and their committed offsets.

A pure core decides. ``GroupShard`` holds the groups of one partition of ``__consumer_offsets`` and
handles each request, expired deadline or committed batch in one ``Turn``, which collects records,
replies and notes. Three modules are asynchronous: ``shard_runner`` executes turns, ``led_shards``
keeps the runners of the partitions that this node leads, and ``coordinators`` routes requests to
them. ``shard_kind`` says what the first two know about a shard, so they also serve transactions.

| module | subject |
|---|---|
| ``coordinators`` | all led partitions of this node; entry point of the server |
| ``led_shards`` | the runners of all led partitions of a topic |
| ``shard_kind`` | the protocol of a shard |
| ``shard_runner`` | one led partition: load, append, reply |
| ``deadline_timer`` | wake-ups for deadlines; detects stalls of this process |
| ``turn`` | one step: its inputs and its results |
| ``shard`` | all groups and offsets of one partition |
| ``consumer`` | groups of the consumer protocol (KIP-848) |
| ``groups`` | descriptions and offset requests of groups of both protocols |
| ``group`` | one classic group: its members and its phase |
| ``join``, ``sync``, ``liveness`` | JoinGroup, SyncGroup; Heartbeat, LeaveGroup, session expiry |
| ``rebalance`` | the phases of a rebalance and their deadlines |
| ``offsets`` | committed offsets: commit, fetch, delete, expire |
| ``pending_offsets`` | offsets of open transactions |
| ``deadlines`` | deadlines by key |
| ``write_queue`` | records that wait for the log, and their batches |
| ``loading`` | replay of the log into a shard |
| ``records``, ``schema`` | records of ``__consumer_offsets`` as values and as Kafka's bytes |
| ``log`` | the protocol that a partition's log implements, and records in transactions |
| ``hashing`` | the partition of a group |
"""
