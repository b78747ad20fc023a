"""One partition's next state: who leads, who is in sync, who may lead when nobody is.

Who is elected, in this order (KIP-966):

    1. a replica in sync: the one that leads already, else the first in the order of replicas;
    2. with nobody in sync, an eligible replica (ELR): it has all that was ever committed, for
       nothing is committed while fewer than the minimum are in sync;
    3. with nobody eligible, the last known leader;
    4. any replica that lives, where unclean elections are enabled or asked for.

3 and 4 may lose records, so the new leader is alone in sync and begins as RECOVERING. Naming a
leader begins a new leader epoch; a mere change of the in-sync set does not (KAFKA-15021).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from uuid import UUID

from riverrun.cluster.partitions.election_rules import TopicRules
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

Nodes = tuple[NodeId, ...]


class Election(Enum):
    """What may be done to find a leader."""

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def election_of(rules: TopicRules) -> Election:
    """What a topic allows when nobody asks."""
    return Election.UNCLEAN if rules.is_unclean_enabled else Election.ONLINE


class Candidates:
    """Who may lead now: brokers that are neither fenced nor leaving, with directories online."""

    def __init__(
        self, image: Image, *, without: Collection[NodeId] = (), also: Collection[NodeId] = ()
    ) -> None:
        """``without`` are about to be fenced, ``also`` are about to be unfenced."""
        self._online: Mapping[NodeId, tuple[UUID, ...]] = {
            broker.id: broker.directories
            for broker in image.brokers.values()
            if broker.id not in without and (broker.id in also or image.is_active(broker.id))
        }

    def may_lead(self, partition: PartitionImage, node: NodeId) -> bool:
        online = self._online.get(node)
        if online is None or node not in partition.replicas:
            return False
        return is_online(online, partition.directories[partition.replicas.index(node)])


def is_online(online: tuple[UUID, ...], directory: UUID) -> bool:
    """Whether a replica there can be used; where it is not known, that is assumed (KIP-858)."""
    if directory in online:
        return True
    if directory == DIRECTORY_LOST:
        return False
    return not online or directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING)


def change(
    topic: TopicId,
    index: int,
    partition: PartitionImage,
    rules: TopicRules,
    candidates: Candidates,
    *,
    isr: Nodes | None = None,
    unclean: Collection[NodeId] = (),
    lost: Collection[NodeId] = (),
    election: Election = Election.ONLINE,
    recovery: LeaderRecoveryState | None = None,
    directories: tuple[UUID, ...] | None = None,
) -> PartitionChangeRecord | None:
    """The record that brings a partition to the wanted in-sync set and elects; None: no change.

    ``unclean`` replicas may have lost records and are eligible no longer; ``lost`` ones have lost
    them, and are not even the last resort where there are others.
    """
    target = partition.isr if isr is None else isr
    elr = _eligible(partition, rules, target, unclean)
    elected, is_unclean = _elect(partition, rules, candidates, target, elr, election)
    leader = NO_LEADER_CHANGE
    if elected != partition.leader:
        leader = elected
        if is_unclean:
            target, elr = (elected,), ()
            recovery = LeaderRecoveryState.RECOVERING
        elif elected in elr:
            target, elr = (elected,), tuple([node for node in elr if node != elected])
    # Before ELR the last in-sync set was kept, to tell who may lead.
    is_isr_changed = target != partition.isr and (bool(target) or rules.is_elr_enabled)
    is_recovery_changed = recovery is not None and recovery != partition.leader_recovery_state
    last_known = _last_known(partition, rules, leader, () if target else partition.isr, lost)
    if directories == partition.directories:
        directories = None
    if (
        leader == NO_LEADER_CHANGE
        and not is_isr_changed
        and not is_recovery_changed
        and elr == partition.elr
        and last_known is None
        and directories is None
    ):
        return None
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic,
        isr=target if is_isr_changed else None,
        leader=leader,
        leader_recovery_state=NO_RECOVERY_CHANGE
        if recovery is None or not is_recovery_changed
        else int(recovery),
        directories=directories,
        eligible_leader_replicas=None if elr == partition.elr else elr,
        last_known_elr=last_known,
    )


def _eligible(
    partition: PartitionImage, rules: TopicRules, target: Nodes, unclean: Collection[NodeId]
) -> Nodes:
    """Whoever leaves a set that was at its minimum holds all that is committed.

    With the minimum in sync again, records are committed without those who left.
    """
    if not rules.is_elr_enabled or len(target) >= rules.minimum:
        return ()
    known = dict.fromkeys(partition.elr + partition.isr)
    return tuple(sorted([node for node in known if node not in target and node not in unclean]))


def _elect(
    partition: PartitionImage,
    rules: TopicRules,
    candidates: Candidates,
    isr: Nodes,
    elr: Nodes,
    election: Election,
) -> tuple[NodeId, bool]:
    """Who leads now, and whether that may lose records."""
    safe = isr or elr
    may_lead = candidates.may_lead
    if election is Election.PREFERRED:
        preferred = partition.replicas[0]
        if preferred in safe and may_lead(partition, preferred):
            return preferred, False
    if partition.leader in safe and may_lead(partition, partition.leader):
        return partition.leader, False
    for node in partition.replicas:
        if node in safe and may_lead(partition, node):
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
    rules: TopicRules,
    leader: int,
    left: Nodes,
    lost: Collection[NodeId],
) -> Nodes | None:
    """The last leader, remembered when nobody is left in sync, forgotten when there is another.

    ``left`` are the in-sync replicas of a set that becomes empty; None stands for no change.
    """
    last = partition.last_known_elr
    if left:
        last = left[:1] if partition.leader == NO_LEADER else (partition.leader,)
    elif leader >= 0 or (leader == NO_LEADER_CHANGE and partition.leader != NO_LEADER):
        last = ()
    is_lost = len(partition.replicas) > 1 and any(node in lost for node in last)
    if is_lost or not rules.is_elr_enabled:
        last = ()
    return None if last == partition.last_known_elr else last
