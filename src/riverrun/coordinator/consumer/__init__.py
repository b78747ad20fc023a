"""Groups of the consumer protocol (KIP-848): the coordinator assigns the partitions.

| module | subject |
|---|---|
| ``groups`` | all groups of one shard, and their deadlines |
| ``state`` | one group: members, epochs, targets, owners |
| ``heartbeat`` | ConsumerGroupHeartbeat: join, stay, leave |
| ``emission`` | records with their effect; group epoch and target assignment |
| ``reconciliation`` | one member on its way to its target |
| ``targets`` | the computation of a target assignment, in slices |
| ``assignors`` | ``uniform`` and ``range`` |
| ``regexes`` | subscriptions by regular expression |
| ``commits`` | which commits and fetches of offsets are allowed |
| ``classic_members``, ``migration`` | members of the classic protocol; conversion of groups |
| ``catalog`` | topics and settings, as a group sees them |
| ``records`` | records as values and as Kafka's bytes |
"""
