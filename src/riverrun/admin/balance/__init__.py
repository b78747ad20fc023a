"""Even out, empty and maintain nodes: plans, moves and modes of brokers.

| module | subject |
|---|---|
| ``cluster_state`` | brokers, replicas, sizes, traffic and moves |
| ``planning`` | plans from that state |
| ``reassignments`` | AlterPartitionReassignments |
| ``stored_plans`` | submits, reads, watches and cancels plans of the controller |
| ``cancellation`` | cancels plans and moves |
| ``decommissioning`` | what a decommissioning needs besides its plan |
| ``plan_report`` | a plan in words and as JSON |
| ``moves_report`` | moves in progress: bytes, rate, time left |
| ``broker_modes`` | maintenance and decommissioning |
| ``topic_plans`` | plans for one topic |
"""
