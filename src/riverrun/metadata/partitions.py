"""One partition: from its records to its image and back.

Invariants of a partition are asserted here, so that no impossible state is written or replayed:
in-sync replicas are replicas, the leader is in sync, and eligible leader replicas are not in sync
(KIP-966).
"""

from __future__ import annotations

from uuid import UUID

from riverrun.metadata.image import (
    DIRECTORY_MIGRATING,
    NO_LEADER,
    LeaderRecoveryState,
    PartitionImage,
)
from riverrun.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord, PartitionRecord
from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicId

NO_RECOVERY_CHANGE = -1


def partition_of(record: PartitionRecord) -> PartitionImage:
    """The partition described by a whole record."""
    replicas = _nodes(record.replicas)
    partition = PartitionImage(
        replicas=replicas,
        # One tuple for both, where they are equal: a million partitions are in memory.
        isr=replicas if record.isr == record.replicas else _nodes(record.isr),
        elr=_nodes(record.eligible_leader_replicas or ()),
        last_known_elr=_nodes(record.last_known_elr or ()),
        leader=NodeId(record.leader),
        leader_epoch=LeaderEpoch(record.leader_epoch),
        partition_epoch=record.partition_epoch,
        directories=_directories(record.directories, len(record.replicas)),
        adding=_nodes(record.adding_replicas),
        removing=_nodes(record.removing_replicas),
        leader_recovery_state=LeaderRecoveryState(record.leader_recovery_state),
    )
    _check(partition)
    return partition


def changed(partition: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """The partition after a change. Naming a leader, even the same one, starts a new leader
    epoch."""
    replicas = partition.replicas if record.replicas is None else _nodes(record.replicas)
    if record.directories is None:
        directories = partition.directories
    else:
        directories = _directories(record.directories, len(replicas))
    leader, leader_epoch = partition.leader, partition.leader_epoch
    if record.leader != NO_LEADER_CHANGE:
        leader, leader_epoch = NodeId(record.leader), LeaderEpoch(leader_epoch + 1)
    recovery = partition.leader_recovery_state
    if record.leader_recovery_state != NO_RECOVERY_CHANGE:
        recovery = LeaderRecoveryState(record.leader_recovery_state)
    after = PartitionImage(
        replicas=replicas,
        isr=_or(record.isr, partition.isr),
        elr=_or(record.eligible_leader_replicas, partition.elr),
        last_known_elr=_or(record.last_known_elr, partition.last_known_elr),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition.partition_epoch + 1,
        directories=directories,
        adding=_or(record.adding_replicas, partition.adding),
        removing=_or(record.removing_replicas, partition.removing),
        leader_recovery_state=recovery,
    )
    _check(after)
    return after


def record_of(topic: TopicId, index: PartitionIndex, partition: PartitionImage) -> PartitionRecord:
    """The record that describes the whole partition."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing,
        adding_replicas=partition.adding,
        leader=partition.leader,
        leader_recovery_state=int(partition.leader_recovery_state),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=tuple(
            None if directory == DIRECTORY_MIGRATING else directory
            for directory in partition.directories
        ),
        eligible_leader_replicas=partition.elr or None,
        last_known_elr=partition.last_known_elr or None,
    )


def _check(partition: PartitionImage) -> None:
    replicas, isr = partition.replicas, partition.isr
    assert replicas, f"no replicas: {partition}"
    assert len(partition.directories) == len(replicas), f"directories do not match: {partition}"
    known = frozenset(replicas)
    assert len(known) == len(replicas), f"a replica twice: {partition}"
    if isr != replicas:
        assert len(frozenset(isr)) == len(isr), f"an in-sync replica twice: {partition}"
        assert known.issuperset(isr), f"ISR outside the replicas: {partition}"
    assert partition.leader == NO_LEADER or partition.leader in isr, f"leader not in {partition}"
    assert partition.leader_epoch >= 0, f"negative leader epoch: {partition}"
    assert partition.partition_epoch >= 0, f"negative partition epoch: {partition}"
    for node in partition.elr:
        assert node in replicas, f"ELR outside the replicas: {partition}"
        assert node not in isr, f"{node} is in ISR and ELR: {partition}"
    for node in partition.adding + partition.removing:
        assert node in replicas, f"{node} is reassigned but no replica: {partition}"


def _nodes(ids: tuple[int, ...]) -> tuple[NodeId, ...]:
    return ids  # type: ignore[return-value]  # the same numbers, now with a meaning


def _or(ids: tuple[int, ...] | None, otherwise: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return otherwise if ids is None else _nodes(ids)


def _directories(ids: tuple[UUID | None, ...], count: int) -> tuple[UUID, ...]:
    """Records from before KIP-858 have none; an id of zeros is read as None."""
    if not ids:
        return (DIRECTORY_MIGRATING,) * count
    return tuple(directory or DIRECTORY_MIGRATING for directory in ids)
