"""Partitions and their replicas.

| module | subject |
|---|---|
| ``partition_change`` | one partition: the next leader, in-sync set and eligible set |
| ``election_rules`` | the settings of a topic that elections depend on |
| ``leadership`` | all partitions of a broker that fails, starts, stops or loses a directory |
| ``elect_leaders`` | ElectLeaders, and the return of leadership to preferred replicas |
| ``alter_partition`` | AlterPartition: a leader proposes an in-sync set |
| ``assign_replicas_to_dirs`` | AssignReplicasToDirs: directories of replicas, lost replicas |
| ``assignment`` | the replicas of one partition, and how a reassignment changes them |
| ``reassignment`` | AlterPartitionReassignments and ListPartitionReassignments |
| ``create_partitions`` | CreatePartitions, and the records of new partitions |
| ``placement`` | inputs of ``riverrun.placement``: the brokers for new replicas |
| ``elr`` | eligible leader replicas when their rules change (KIP-966) |
"""
