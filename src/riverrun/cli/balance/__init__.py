"""Even out, empty and maintain nodes: plans, moves and modes of brokers.

| module | subject |
|---|---|
| ``cluster_state`` | brokers, replicas, sizes and moves, from Kafka's own requests |
| ``reassignments`` | AlterPartitionReassignments |
| ``throttles`` | rate limits of moves, set and removed |
| ``execution`` | runs the moves of a plan, a limited number at a time |
| ``run_plan`` | shows a plan, runs it with progress |
| ``plan_report`` | a plan in words and as JSON |
| ``moves_report`` | moves in progress: bytes, rate, time left |
| ``broker_modes`` | maintenance and decommissioning |
| ``command`` | ``riverrun cluster balance``, ``moves``, ``maintenance``, ``decommission`` |
| ``topic_plans`` | plans for one topic |
| ``topic_command`` | ``riverrun topics move`` and ``rebalance`` |
"""
