"""The next state of one partition: its leader, in-sync set and eligible set.

The leader is elected in this order (KIP-966):

    1. an in-sync replica: the current leader, else the first in the order of replicas;
    2. without in-sync replicas, an eligible one (ELR): it has all committed records, because
       nothing is committed while fewer than min.insync.replicas are in sync. If it can commit
       alone, the others are no longer eligible;
    3. without eligible replicas, the last known leader;
    4. any live replica, if unclean elections are enabled or requested.

Rules 3 and 4 may lose records, so the new leader is the only in-sync replica and starts as
RECOVERING. A new leader starts a new leader epoch. A change of the in-sync set alone does not
(KAFKA-15021).

A reassignment ends in the same record as the change of the in-sync set that completes it. When
replicas leave the partition, the leader epoch is raised even if the leader stays: otherwise a
removed replica could still join the in-sync set with a fetch of this epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from uuid import UUID

from msgspec.structs import replace

from riverrun.cluster.brokers.modes import resting
from riverrun.cluster.partitions.assignment import (
    Assignment,
    Nodes,
    complete,
    current,
    is_reassigning,
    without,
)
from riverrun.cluster.partitions.election_rules import ElectionRules
from riverrun.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    Image,
    LeaderRecoveryState,
    PartitionImage,
)
from riverrun.metadata.partitions import NO_RECOVERY_CHANGE
from riverrun.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord
from riverrun.model.ids import NodeId, TopicId


class Election(Enum):
    """How a leader may be elected: from safe replicas, the preferred one first, or any."""

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def default_election(rules: ElectionRules) -> Election:
    """The kind of election that a topic allows without a request."""
    return Election.UNCLEAN if rules.is_unclean_enabled else Election.ONLINE


class LeaderCandidates:
    """The brokers that may lead: not fenced, not in controlled shutdown, directories online."""

    def __init__(
        self, image: Image, *, without: Collection[NodeId] = (), also: Collection[NodeId] = ()
    ) -> None:
        """``without``: brokers about to be fenced. ``also``: brokers about to be unfenced."""
        self._online: Mapping[NodeId, tuple[UUID, ...]] = {
            broker.id: broker.directories
            for broker in image.brokers.values()
            if broker.id not in without and (broker.id in also or image.is_active(broker.id))
        }
        self._resting = resting(image)

    def may_lead(self, partition: PartitionImage, node: NodeId) -> bool:
        online = self._online.get(node)
        if online is None or node not in partition.replicas:
            return False
        return is_online(online, partition.directories[partition.replicas.index(node)])

    def should_lead(self, partition: PartitionImage, node: NodeId) -> bool:
        """Brokers in maintenance lead only where no other replica can."""
        return node not in self._resting and self.may_lead(partition, node)


def is_online(online: tuple[UUID, ...], directory: UUID) -> bool:
    """Whether a replica in the directory is usable; assumed if the directory is not known
    (KIP-858)."""
    if directory in online:
        return True
    if directory == DIRECTORY_LOST:
        return False
    return not online or directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING)


def change(
    topic: TopicId,
    index: int,
    partition: PartitionImage,
    rules: ElectionRules,
    candidates: LeaderCandidates,
    *,
    isr: Nodes | None = None,
    unclean: Collection[NodeId] = (),
    lost: Collection[NodeId] = (),
    election: Election = Election.ONLINE,
    recovery: LeaderRecoveryState | None = None,
    directories: tuple[UUID, ...] | None = None,
    assignment: Assignment | None = None,
) -> PartitionChangeRecord | None:
    """The record that sets the in-sync set and elects a leader; None if nothing changes.

    ``unclean`` replicas may have lost records and are no longer eligible. ``lost`` replicas have
    lost them, so they are not the last known leader either if there are other replicas.
    ``assignment`` starts or cancels a reassignment; ``directories`` are those of the current one.
    """
    target = partition.isr if isr is None else isr
    assigned = _assigned(partition, assignment, directories, target, rules)
    if assigned.replicas != partition.replicas:
        target = tuple([node for node in target if node in assigned.replicas])
    elr = _eligible(assigned, rules, target, unclean)
    elected, is_unclean = _elect(assigned, rules, candidates, target, elr, election)
    leader = NO_LEADER_CHANGE
    if elected != partition.leader:
        leader = elected
        if is_unclean:
            target, elr = (elected,), ()
            recovery = LeaderRecoveryState.RECOVERING
        elif elected in elr:
            target = (elected,)
            elr = _eligible(replace(assigned, elr=elr), rules, target, unclean)
    elif any(node not in assigned.replicas for node in partition.replicas):
        leader = elected
    # Without ELR the last in-sync set is kept: it shows which replicas may lead.
    is_isr_changed = target != partition.isr and (bool(target) or rules.is_elr_enabled)
    if recovery == partition.leader_recovery_state:
        recovery = None
    last_known = _last_known(assigned, rules, leader, () if target else partition.isr, lost)
    record = PartitionChangeRecord(
        partition_id=index,
        topic_id=topic,
        isr=target if is_isr_changed else None,
        leader=leader,
        leader_recovery_state=NO_RECOVERY_CHANGE if recovery is None else int(recovery),
        replicas=_if_changed(assigned.replicas, partition.replicas),
        adding_replicas=_if_changed(assigned.adding, partition.adding),
        removing_replicas=_if_changed(assigned.removing, partition.removing),
        directories=None
        if (assigned.replicas, assigned.directories) == (partition.replicas, partition.directories)
        else assigned.directories,
        eligible_leader_replicas=_if_changed(elr, partition.elr),
        last_known_elr=_if_changed(last_known, partition.last_known_elr),
    )
    unchanged = PartitionChangeRecord(partition_id=index, topic_id=topic)
    return None if record == unchanged else record


def _assigned(
    partition: PartitionImage,
    assignment: Assignment | None,
    directories: tuple[UUID, ...] | None,
    isr: Nodes,
    rules: ElectionRules,
) -> PartitionImage:
    """The partition with the assignment that this in-sync set leads to."""
    if directories is not None:
        partition = replace(partition, directories=directories)
    if assignment is None:
        if not is_reassigning(partition):
            return partition
        assignment = current(partition)
    replicas, places, adding, removing = complete(assignment, isr, rules.min_isr) or assignment
    return replace(
        partition, replicas=replicas, directories=places, adding=adding, removing=removing
    )


def _if_changed(nodes: Nodes, before: Nodes) -> Nodes | None:
    return None if nodes == before else nodes


def _eligible(
    partition: PartitionImage, rules: ElectionRules, target: Nodes, unclean: Collection[NodeId]
) -> Nodes:
    """The eligible set. Replicas that left an in-sync set of minimum size have all commits.

    Once the minimum is in sync again, records are committed without them, so the set is empty.
    Replicas that leave the partition are not eligible; Kafka keeps them.
    """
    if not rules.is_elr_enabled or len(target) >= partition.min_in_sync(rules.min_isr):
        return ()
    known = dict.fromkeys(partition.elr + partition.isr)
    eligible = without(tuple(known), (*target, *unclean))
    return tuple(sorted([node for node in eligible if node in partition.replicas]))


def _elect(
    partition: PartitionImage,
    rules: ElectionRules,
    candidates: LeaderCandidates,
    isr: Nodes,
    elr: Nodes,
    election: Election,
) -> tuple[NodeId, bool]:
    """The leader, and whether its election may lose records."""
    safe = isr or elr
    may_lead = candidates.may_lead
    if election is Election.PREFERRED:
        preferred = partition.replicas[0]
        if preferred in safe and candidates.should_lead(partition, preferred):
            return preferred, False
    if partition.leader in safe and may_lead(partition, partition.leader):
        return partition.leader, False
    for is_suitable in (candidates.should_lead, may_lead):
        for node in partition.replicas:
            if node in safe and is_suitable(partition, node):
                return node, False
    if rules.is_elr_enabled and not safe and len(partition.last_known_elr) == 1:
        last = partition.last_known_elr[0]
        if may_lead(partition, last):
            return last, True
    if election is Election.UNCLEAN:
        for node in partition.replicas:
            if may_lead(partition, node):
                return node, True
    return NO_LEADER, False


def _last_known(
    partition: PartitionImage,
    rules: ElectionRules,
    leader: int,
    left: Nodes,
    lost: Collection[NodeId],
) -> Nodes:
    """The last known leader: set when the in-sync set becomes empty, cleared by a new leader.

    ``left`` is the in-sync set that becomes empty, if it does.
    """
    last = partition.last_known_elr
    if left:
        last = left[:1] if partition.leader == NO_LEADER else (partition.leader,)
    elif leader >= 0 or (leader == NO_LEADER_CHANGE and partition.leader != NO_LEADER):
        last = ()
    is_lost = len(partition.replicas) > 1 and any(node in lost for node in last)
    if is_lost or not rules.is_elr_enabled:
        return ()
    return tuple([node for node in last if node in partition.replicas])
