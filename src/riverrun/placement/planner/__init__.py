"""Plans that move existing replicas, in O(R log B + M) for R replicas, B brokers and M moves.

| module | subject |
|---|---|
| ``plan`` | the plan: purposes, goals, moves, reasons |
| ``layout`` | the input in flat arrays |
| ``board`` | the state of a plan in the making, and the hard rules |
| ``evacuation`` | replicas that must move: gone and draining brokers, racks |
| ``spreading`` | even counts of replicas, per topic and in all |
| ``by_size`` | replicas of one broker, the nearest to a wanted size first |
| ``resources`` | even bytes, by swaps |
| ``leadership`` | even preferred leaders |
| ``bytes_out`` | even bytes out, by other leaders |
| ``heirs`` | followers in an order that spreads the load of a lost broker |
| ``resizing`` | another replication factor for a topic |
| ``fairness`` | the figures before and after |
| ``estimate`` | how long a plan takes |
| ``schedule`` | which moves to start next |
| ``stored_plan`` | a plan as texts in the metadata |
| ``triggers`` | when to plan |
"""
