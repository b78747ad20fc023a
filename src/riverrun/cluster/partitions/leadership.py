"""Changes to all partitions of a broker that fails, starts, stops or loses a directory.

Each function returns the records of one event. Any prefix of them is valid by itself, because very
many records are written as several batches and a crash may happen in between. So a broker leaves
all in-sync sets before it is fenced or registered again, and it is unfenced before it is elected.
The functions scan all partitions: ten thousand take a few milliseconds, less than it would cost to
maintain an index by broker. Where a broker has very many replicas, ``departure.py`` takes it from
the in-sync sets before, in small steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.election_rules import ElectionRules, election_rules
from riverrun.cluster.partitions.partition_change import (
    LeaderCandidates,
    change,
    default_election,
    is_online,
)
from riverrun.metadata.image import (
    DIRECTORY_LOST,
    NO_LEADER,
    BrokerImage,
    Image,
    PartitionImage,
    TopicImage,
)
from riverrun.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from riverrun.metadata.registrations import FENCED, UNFENCED
from riverrun.model.ids import NodeId

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

SHUTTING_DOWN = 1


def fence(configs: Configs, image: Image, nodes: Collection[NodeId]) -> list[Record]:
    """Fence brokers: other replicas lead, and the brokers leave all in-sync sets."""
    gone = [node for node in dict.fromkeys(nodes) if not _is_fenced(image, node)]
    if not gone:
        return []
    records: list[Record] = list(_leave(configs, image, gone))
    records += (
        BrokerRegistrationChangeRecord(
            broker_id=node, broker_epoch=image.brokers[node].epoch, fenced=FENCED
        )
        for node in gone
    )
    return records


def unfence(configs: Configs, image: Image, node: NodeId) -> list[Record]:
    """Unfence a broker and elect it where there is no leader and it may lead."""
    unfenced = BrokerRegistrationChangeRecord(
        broker_id=node, broker_epoch=image.brokers[node].epoch, fenced=UNFENCED
    )
    candidates = LeaderCandidates(image, also=(node,))
    return [unfenced, *_elect_leaderless(configs, image, candidates, node)]


def begin_shutdown(
    configs: Configs, image: Image, node: NodeId, *, limit: int | None = None
) -> list[Record]:
    """Start a controlled shutdown: other replicas lead, and the broker cannot join an in-sync set
    any more (KIP-841). It leaves at most ``limit`` sets."""
    records: list[Record] = []
    if not image.brokers[node].in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=node,
                broker_epoch=image.brokers[node].epoch,
                in_controlled_shutdown=SHUTTING_DOWN,
            )
        )
    records += islice(_leave(configs, image, (node,)), limit)
    return records


def unregister(configs: Configs, image: Image, node: NodeId) -> list[Record]:
    """Remove a broker. Its replicas are no longer eligible. Its mode stays."""
    records: list[Record] = list(_leave(configs, image, (node,), unclean=(node,)))
    epoch = image.brokers[node].epoch
    records.append(UnregisterBrokerRecord(broker_id=node, broker_epoch=epoch))
    return records


def restart(
    configs: Configs,
    image: Image,
    node: NodeId,
    directories: tuple[UUID, ...],
    *,
    is_clean: bool,
) -> list[Record]:
    """Register a new incarnation, as if the session of the old one had ended.

    After an unclean shutdown it may have lost records from the page cache, so it is no longer
    eligible (KIP-966). Replicas in a directory that it no longer has are lost, and are assigned to
    its only directory.
    """
    candidates = LeaderCandidates(image, without=(node,))
    records: list[Record] = []
    for topic, rules, index, partition in _partitions(configs, image, (node,)):
        moved = _new_directories(partition, node, directories)
        is_counted = node in partition.isr or node in partition.elr
        if not is_counted and moved is None:
            continue
        record = change(
            topic.id,
            index,
            partition,
            rules,
            candidates,
            isr=_without(partition.isr, (node,)),
            unclean=() if is_clean else (node,),
            lost=() if moved is None else (node,),
            election=default_election(rules),
            directories=moved,
        )
        if record is not None:
            records.append(record)
    return records


def directories_lost(
    configs: Configs, image: Image, broker: BrokerImage, lost: Collection[UUID]
) -> list[Record]:
    """Some directories of a broker have failed: other replicas lead the partitions in them."""
    left = tuple(one for one in broker.directories if one not in lost)
    assert left, f"broker {broker.id} has no directory left and must be fenced"
    records: list[Record] = list(_leave(configs, image, (broker.id,), directories=lost))
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left
        )
    )
    return records


def elect_leaderless(configs: Configs, image: Image) -> list[Record]:
    """Elect leaders in all partitions without a leader, where possible."""
    return list(_elect_leaderless(configs, image, LeaderCandidates(image), None))


def leads_any(image: Image, node: NodeId) -> bool:
    return any(
        partition.leader == node
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


def holds_any(image: Image, node: NodeId) -> bool:
    return any(
        node in partition.replicas
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


def _leave(
    configs: Configs,
    image: Image,
    nodes: Collection[NodeId],
    *,
    unclean: Collection[NodeId] = (),
    directories: Collection[UUID] | None = None,
) -> Iterator[PartitionChangeRecord]:
    """Remove brokers from the in-sync sets, and ``unclean`` ones from the eligible sets too.

    ``directories`` limits that to replicas in these directories.
    """
    candidates = LeaderCandidates(image, without=nodes)
    for topic, rules, index, partition in _partitions(configs, image, nodes):
        if directories is not None and not _is_in(partition, nodes, directories):
            continue
        record = leave_partition(topic, index, rules, candidates, nodes, unclean=unclean)
        if record is not None:
            yield record


def leave_partition(
    topic: TopicImage,
    index: int,
    rules: ElectionRules,
    candidates: LeaderCandidates,
    nodes: Collection[NodeId],
    *,
    unclean: Collection[NodeId] = (),
) -> PartitionChangeRecord | None:
    """Remove brokers from the in-sync set of one partition, and ``unclean`` ones from the eligible
    set too; None if they are in neither."""
    partition = topic.partitions[index]
    if not any(node in partition.isr for node in nodes) and not any(
        node in partition.elr for node in unclean
    ):
        return None
    return change(
        topic.id,
        index,
        partition,
        rules,
        candidates,
        isr=_without(partition.isr, nodes),
        unclean=unclean,
        election=default_election(rules),
    )


def _partitions(
    configs: Configs, image: Image, nodes: Collection[NodeId]
) -> Iterator[tuple[TopicImage, ElectionRules, int, PartitionImage]]:
    """The partitions with a replica on one of the brokers."""
    only = next(iter(nodes)) if len(nodes) == 1 else None
    for topic in image.topics_by_name.values():
        rules: ElectionRules | None = None
        for index, partition in enumerate(topic.partitions):
            replicas = partition.replicas
            if only not in replicas if only is not None else not any(n in replicas for n in nodes):
                continue
            if rules is None:
                rules = election_rules(configs, image, topic)
            yield topic, rules, index, partition


def _elect_leaderless(
    configs: Configs, image: Image, candidates: LeaderCandidates, node: NodeId | None
) -> Iterator[PartitionChangeRecord]:
    """``node`` limits that to partitions with a replica on this broker."""
    for topic in image.topics_by_name.values():
        rules: ElectionRules | None = None
        for index, partition in enumerate(topic.partitions):
            if partition.leader != NO_LEADER or (
                node is not None and node not in partition.replicas
            ):
                continue
            if rules is None:
                rules = election_rules(configs, image, topic)
            record = change(
                topic.id, index, partition, rules, candidates, election=default_election(rules)
            )
            if record is not None:
                yield record


def _is_fenced(image: Image, node: NodeId) -> bool:
    broker = image.brokers.get(node)
    return broker is None or broker.is_fenced


def _without(isr: tuple[NodeId, ...], nodes: Collection[NodeId]) -> tuple[NodeId, ...]:
    return tuple([node for node in isr if node not in nodes])


def _is_in(
    partition: PartitionImage, nodes: Collection[NodeId], directories: Collection[UUID]
) -> bool:
    return any(
        node in nodes and directory in directories
        for node, directory in zip(partition.replicas, partition.directories, strict=True)
    )


def _new_directories(
    partition: PartitionImage, node: NodeId, directories: tuple[UUID, ...]
) -> tuple[UUID, ...] | None:
    """The new directories of a partition whose replica was in a directory that no longer exists;
    None if nothing changes."""
    place = partition.replicas.index(node)
    if len(directories) != 1 or is_online(directories, partition.directories[place]):
        return None
    if partition.directories[place] == DIRECTORY_LOST:
        return None
    changed = list(partition.directories)
    changed[place] = directories[0]
    return tuple(changed)
