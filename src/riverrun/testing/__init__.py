"""A real cluster in tests: started as processes, used through the protocol, gone afterwards.

- ``Cluster``, ``AsyncCluster``: start a cluster, create topics, read records, kill nodes
- ``pytest_plugin``: fixtures ``riverrun_cluster`` and ``riverrun_topic``
- ``ClusterMixin``: for ``unittest`` and Django
- ``containers.KafkaContainer``: replaces the class of testcontainers

The modules behind them:

- ``processes``: the processes of one cluster and its folder
- ``operations``: topics, records and groups, through ``riverrun.client``
- ``sharing``: one cluster for several test processes

A history of transactions can be checked without a cluster: ``transaction_history`` records it, and
``transaction_checks`` finds torn transactions, aborted reads and other anomalies in it.

Names are loaded on first use, because pytest imports this package at each start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.records.record import NewRecord
    from riverrun.testing.async_cluster import AsyncCluster
    from riverrun.testing.case import ClusterMixin
    from riverrun.testing.cluster import Cluster
    from riverrun.testing.operations import ConsumedRecord, ConsumerGroup
    from riverrun.testing.processes import ClusterError

__all__ = [
    "AsyncCluster",
    "Cluster",
    "ClusterError",
    "ClusterMixin",
    "ConsumedRecord",
    "ConsumerGroup",
    "NewRecord",
]

_MODULES = {
    "AsyncCluster": "riverrun.testing.async_cluster",
    "Cluster": "riverrun.testing.cluster",
    "ClusterError": "riverrun.testing.processes",
    "ClusterMixin": "riverrun.testing.case",
    "ConsumedRecord": "riverrun.testing.operations",
    "ConsumerGroup": "riverrun.testing.operations",
    "NewRecord": "riverrun.records.record",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
