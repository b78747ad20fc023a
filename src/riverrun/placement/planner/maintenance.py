"""Maintenance of a broker: its leaderships go to other in-sync replicas. No data moves, and the
order of replicas stays, so leadership returns with the preferred leaders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from riverrun.model.ids import NodeId


class LedPartition(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: NodeId
    replicas: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]
    min_in_sync: int = 1


class LeaderTransfer(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    to: NodeId


class MaintenancePlan(Struct, frozen=True, kw_only=True):
    """``offline`` partitions have no other in-sync replica; ``not_writable`` ones fall below
    min.insync.replicas while the broker is down."""

    transfers: tuple[LeaderTransfer, ...]
    offline: tuple[tuple[str, int], ...]
    not_writable: tuple[tuple[str, int], ...]


def plan_maintenance(
    node: NodeId, partitions: Iterable[LedPartition], *, may_lead: Collection[NodeId]
) -> MaintenancePlan:
    """Hand each leadership to the in-sync replica with the fewest leaders."""
    known: Sequence[LedPartition] = list(partitions)
    leads = dict.fromkeys(sorted(may_lead), 0)
    for one in known:
        if one.leader in leads:
            leads[one.leader] += 1
    transfers: list[LeaderTransfer] = []
    offline: list[tuple[str, int]] = []
    not_writable: list[tuple[str, int]] = []
    for one in known:
        if node in one.in_sync and len(one.in_sync) == one.min_in_sync and len(one.in_sync) > 1:
            not_writable.append((one.topic, one.partition))
        if one.leader != node:
            continue
        able = [r for r in one.replicas if r != node and r in one.in_sync and r in leads]
        if not able:
            offline.append((one.topic, one.partition))
            continue
        to = min(able, key=lambda replica: (leads[replica], one.replicas.index(replica)))
        leads[to] += 1
        transfers.append(LeaderTransfer(topic=one.topic, partition=one.partition, to=to))
    return MaintenancePlan(
        transfers=tuple(transfers), offline=tuple(offline), not_writable=tuple(not_writable)
    )
