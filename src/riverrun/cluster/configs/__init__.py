"""Settings of topics, brokers, groups and client metrics subscriptions.

| module | subject |
|---|---|
| ``node_configs`` | the settings of this node and of its topics, by source |
| ``alter_configs`` | AlterConfigs and IncrementalAlterConfigs |
| ``describe_configs`` | the rows of DescribeConfigs and CreateTopics responses |
| ``values`` | parsing and validation of one value, with Kafka's messages |
| ``group_configs`` | settings of groups and of client metrics subscriptions |
| ``read_only_names`` | broker settings that Kafka does not change at run time |
"""
