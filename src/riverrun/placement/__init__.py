"""Where replicas go: placement of new partitions and plans that move existing ones.

Everything here is pure: plain values in, plain values out, deterministic for the same input and
seed. The controller builds the values from its image; the command line builds them from the
protocol, so both run the same code.

| module | subject |
|---|---|
| ``brokers`` | brokers with rack, availability, counts and load; the cost of one more replica |
| ``shares`` | the fair share of each broker under the rack rule |
| ``new_partitions`` | replicas and leaders of new partitions |
| ``leaders`` | even leadership over given replicas |
| ``explanation`` | why a placement is as it is |
| ``planner`` | plans that balance, repair, drain or resize |
| ``settings`` | placement.policy, broker.capacity.* |
"""
