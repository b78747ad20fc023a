"""The controller: decisions about cluster metadata.

A decision is a pure function of an image and a request. It returns a ``Decision``: the records to
append to the metadata log and the response to send once they are committed. ``active_controller``
is the only asynchronous module. It applies decisions while this node leads the metadata quorum,
tracks broker sessions, and does the periodic work of a controller.

| module | subject |
|---|---|
| ``active_controller`` | append decisions, respond on commit, fence, rebalance leaders |
| ``decision`` | the result of every decision |
| ``topics`` | CreateTopics, DeleteTopics, topic names, auto-created topics |
| ``partitions`` | leaders, in-sync and eligible replicas, placement of replicas |
| ``balance`` | inputs of the planner: layout and state of moves |
| ``brokers`` | registration, heartbeats, sessions |
| ``configs`` | settings: effective values, validation, AlterConfigs, DescribeConfigs |
| ``features`` | UpdateFeatures |
| ``producer_ids`` | AllocateProducerIds |
| ``metrics``, ``settings`` | metrics and settings of the controller |
"""
