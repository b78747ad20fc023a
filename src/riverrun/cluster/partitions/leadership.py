"""Brokers come and go: what that changes in the partitions they hold. Elections live here.

Each function gives the records of one event. They are in an order in which any beginning of them is
sound by itself, for very many are written as several batches and a crash may come in between: a
broker is out of every in-sync set before it is called fenced or registered anew, and unfenced
before it is elected. The partitions are looked through one by one: ten thousand of them take a few
milliseconds, less than an index by broker would cost to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.election_rules import TopicRules, rules_of
from riverrun.cluster.partitions.partition_change import Candidates, change, election_of, is_online
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
    """Sessions have ended: others lead, and the silent ones are in no in-sync set any more."""
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
    """A broker may serve: it leads what nobody leads and what it may lead."""
    unfenced = BrokerRegistrationChangeRecord(
        broker_id=node, broker_epoch=image.brokers[node].epoch, fenced=UNFENCED
    )
    candidates = Candidates(image, also=(node,))
    return [unfenced, *_elect_leaderless(configs, image, candidates, node)]


def begin_shutdown(configs: Configs, image: Image, node: NodeId) -> list[Record]:
    """A broker wants to stop: others lead, and it joins no in-sync set any more (KIP-841)."""
    records: list[Record] = []
    if not image.brokers[node].in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=node,
                broker_epoch=image.brokers[node].epoch,
                in_controlled_shutdown=SHUTTING_DOWN,
            )
        )
    records += _leave(configs, image, (node,))
    return records


def unregister(configs: Configs, image: Image, node: NodeId) -> list[Record]:
    """A broker is gone for good, and nothing that it holds is counted on."""
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
    """A new incarnation: as if the session of the old one had ended.

    Unless its shutdown was clean, it may have lost records that the page cache held, and is not
    eligible any more (KIP-966). Replicas that lay in a directory it does not have any more are
    gone; new ones are to be made in its only one.
    """
    candidates = Candidates(image, without=(node,))
    records: list[Record] = []
    for topic, rules, index, partition in _partitions(configs, image, (node,)):
        home = _home(partition, node, directories)
        is_here = node in partition.isr or node in partition.elr
        if not is_here and home is None:
            continue
        record = change(
            topic.id,
            index,
            partition,
            rules,
            candidates,
            isr=_without(partition.isr, (node,)),
            unclean=() if is_clean else (node,),
            lost=() if home is None else (node,),
            election=election_of(rules),
            directories=home,
        )
        if record is not None:
            records.append(record)
    return records


def directories_lost(
    configs: Configs, image: Image, broker: BrokerImage, lost: Collection[UUID]
) -> list[Record]:
    """Some of a broker's directories have failed: others lead what lies there."""
    left = tuple(one for one in broker.directories if one not in lost)
    assert left, f"broker {broker.id} has no directory left: it is to be fenced"
    records: list[Record] = list(_leave(configs, image, (broker.id,), directories=lost))
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left
        )
    )
    return records


def elect_leaderless(configs: Configs, image: Image) -> list[Record]:
    """Leaders for all partitions that have none and may have one."""
    return list(_elect_leaderless(configs, image, Candidates(image), None))


def leads_any(image: Image, node: NodeId) -> bool:
    return any(
        partition.leader == node
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


# -- Details ---------------------------------------------------------------------------------------


def _leave(
    configs: Configs,
    image: Image,
    nodes: Collection[NodeId],
    *,
    unclean: Collection[NodeId] = (),
    directories: Collection[UUID] | None = None,
) -> Iterator[PartitionChangeRecord]:
    """Take brokers out of the in-sync sets, and of the eligible ones too where they are unclean.

    ``directories`` limits that to replicas that lie there.
    """
    candidates = Candidates(image, without=nodes)
    for topic, rules, index, partition in _partitions(configs, image, nodes):
        if directories is not None and not _lies_in(partition, nodes, directories):
            continue
        if not any(n in partition.isr for n in nodes) and not any(
            n in partition.elr for n in unclean
        ):
            continue
        record = change(
            topic.id,
            index,
            partition,
            rules,
            candidates,
            isr=_without(partition.isr, nodes),
            unclean=unclean,
            election=election_of(rules),
        )
        if record is not None:
            yield record


def _partitions(
    configs: Configs, image: Image, nodes: Collection[NodeId]
) -> Iterator[tuple[TopicImage, TopicRules, int, PartitionImage]]:
    """The partitions that any of some brokers has a replica of."""
    only = next(iter(nodes)) if len(nodes) == 1 else None
    for topic in image.topics_by_name.values():
        rules: TopicRules | None = None
        for index, partition in enumerate(topic.partitions):
            replicas = partition.replicas
            if only not in replicas if only is not None else not any(n in replicas for n in nodes):
                continue
            if rules is None:
                rules = rules_of(configs, image, topic)
            yield topic, rules, index, partition


def _elect_leaderless(
    configs: Configs, image: Image, candidates: Candidates, node: NodeId | None
) -> Iterator[PartitionChangeRecord]:
    """``node`` limits that to partitions that it has a replica of."""
    for topic in image.topics_by_name.values():
        rules: TopicRules | None = None
        for index, partition in enumerate(topic.partitions):
            if partition.leader != NO_LEADER or (
                node is not None and node not in partition.replicas
            ):
                continue
            if rules is None:
                rules = rules_of(configs, image, topic)
            record = change(
                topic.id, index, partition, rules, candidates, election=election_of(rules)
            )
            if record is not None:
                yield record


def _is_fenced(image: Image, node: NodeId) -> bool:
    broker = image.brokers.get(node)
    return broker is None or broker.is_fenced


def _without(isr: tuple[NodeId, ...], nodes: Collection[NodeId]) -> tuple[NodeId, ...]:
    return tuple([node for node in isr if node not in nodes])


def _lies_in(
    partition: PartitionImage, nodes: Collection[NodeId], directories: Collection[UUID]
) -> bool:
    return any(
        node in nodes and directory in directories
        for node, directory in zip(partition.replicas, partition.directories, strict=True)
    )


def _home(
    partition: PartitionImage, node: NodeId, directories: tuple[UUID, ...]
) -> tuple[UUID, ...] | None:
    """The partition's directories when a replica lay elsewhere than in the only one there is."""
    place = partition.replicas.index(node)
    if len(directories) != 1 or is_online(directories, partition.directories[place]):
        return None
    if partition.directories[place] == DIRECTORY_LOST:
        return None
    changed = list(partition.directories)
    changed[place] = directories[0]
    return tuple(changed)
