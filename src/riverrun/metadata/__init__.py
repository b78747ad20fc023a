"""Cluster metadata: a log of records, the image they produce, its deltas and its snapshots.

The active controller appends records. The quorum (package ``raft``) commits them. Every node
replays them into an image, publishes it, and stores snapshots. Four modules are asynchronous:
``metadata_log``, ``log_store``, ``publisher`` and ``snapshotter``; ``waiting`` holds their futures.

| module | subject |
|---|---|
| ``metadata_log`` | the metadata log of a node; entry point of the server and the controller |
| ``publisher`` | makes committed images visible, in log order |
| ``waiting`` | waiters for a published offset, and for this node to catch up |
| ``image`` | the cluster at one offset; immutable |
| ``images`` | the chain of images: published, written but uncommitted, being replayed |
| ``delta`` | the changes that records make to an image; the only module that changes metadata |
| ``difference`` | the changes between two images, after a snapshot was installed |
| ``records``, ``schema`` | the records as values and as Kafka's bytes |
| ``partitions``, ``registrations``, ``entries`` | partitions; brokers, controllers; ACLs, quotas |
| ``log_store`` | the log on disk: append, truncate, flush, persist the quorum state |
| ``snapshot``, ``snapshotter`` | the file of a snapshot; when one is written |
| ``loading`` | the snapshots beside the log, and the voters in both |
| ``opening`` | checks before a directory is used: its owner, lost records |
| ``bootstrap`` | the first records of a new log |
| ``flushed`` | the checkpoint of the flushed offset, which detects lost records |
| ``reserve`` | disk space reserved for votes and leader changes |
| ``quorum`` | voters, the ``quorum-state`` file, control records |
| ``description`` | the quorum's state for DescribeQuorum, health and metrics |
| ``settings`` | settings of the metadata log |
"""
