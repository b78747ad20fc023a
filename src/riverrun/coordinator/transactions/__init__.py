"""The transaction coordinator: producers with a transactional id and their transactions (KIP-98).

It has the shape of the group coordinator. ``TransactionShard`` holds the transactional ids of one
partition of ``__transaction_state`` and handles each request, expired deadline or committed batch
in one turn. Decisions are functions of the stored transaction and the request.

| module | subject |
|---|---|
| ``coordinators`` | all led partitions of this node; entry point of the server |
| ``shard`` | all transactional ids of one partition: held requests, deadlines, markers to send |
| ``transaction`` | the state of a transactional id, and the transitions between its states |
| ``producers`` | InitProducerId: ids, epochs and fencing (KIP-360) |
| ``partitions`` | AddPartitionsToTxn and AddOffsetsToTxn: add and verify |
| ``ending`` | EndTxn of both versions (KIP-890), aborts by the coordinator, completion |
| ``listing`` | DescribeTransactions and ListTransactions |
| ``turn`` | one step: its inputs and its results |
| ``records`` | records of ``__transaction_state`` as values and as Kafka's bytes |
| ``settings``, ``metrics`` | settings and metrics |

**Transaction versions.** In version 1 a producer keeps its epoch for all its transactions. In
version 2 (KIP-890) every transaction has its own epoch: it is bumped in the Prepare record, and the
response of EndTxn tells the producer. A late request of an earlier transaction is then fenced.
"""
