"""Eligible leader replicas (ELR, KIP-966) when the feature or min.insync.replicas changes.

A replica outside the in-sync set is eligible while nothing was committed without it. That depends
on min.insync.replicas: with a smaller value the in-sync replicas may suffice to commit. Kafka then
clears the eligible replicas of the whole topic (ClearElr). We clear those of partitions that can
commit now, in the same batch as the setting. A partition without a leader commits nothing, so it
keeps its eligible replicas and may still need them.

A reassignment that waited for the minimum (see ``assignment.complete``) ends when the minimum is
lowered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from riverrun.cluster.configs.node_configs import CLUSTER, MIN_INSYNC_REPLICAS, Configs
from riverrun.cluster.partitions.assignment import is_reassigning
from riverrun.cluster.partitions.election_rules import election_rules
from riverrun.cluster.partitions.partition_change import LeaderCandidates, change, default_election
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord

if TYPE_CHECKING:
    from riverrun.metadata.records import PartitionChangeRecord, Record


def with_eligibility(
    configs: Configs, image: Image, records: Sequence[ConfigRecord]
) -> list[ConfigRecord | PartitionChangeRecord]:
    """The records of changed settings, and of the changes to eligible replicas that follow."""
    together: list[ConfigRecord | PartitionChangeRecord] = list(records)
    if any(record.name == MIN_INSYNC_REPLICAS for record in records):
        together += _changes_by_minimum(configs, image, records)
    return together


def _changes_by_minimum(
    configs: Configs, image: Image, records: Sequence[ConfigRecord]
) -> list[PartitionChangeRecord]:
    delta = Delta(image)
    for record in records:
        delta.replay(record)
    after = delta.publish(offset=image.offset, epoch=image.epoch, timestamp=image.timestamp)
    candidates = LeaderCandidates(after)
    changed: list[PartitionChangeRecord] = []
    for topic in after.topics_by_name.values():
        if not any(partition.elr or is_reassigning(partition) for partition in topic.partitions):
            continue
        rules = election_rules(configs, after, topic)
        for index, partition in enumerate(topic.partitions):
            if partition.elr or is_reassigning(partition):
                made = change(
                    topic.id, index, partition, rules, candidates, election=default_election(rules)
                )
                changed += () if made is None else (made,)
    return changed


def records_to_enable(configs: Configs, image: Image) -> Iterator[Record]:
    """Store the cluster's min.insync.replicas as a record.

    With ELR all nodes must use the same value, so it must not come from each broker's file.
    """
    for kind, name in image.configs:
        is_broker = kind is ConfigType.BROKER and name != CLUSTER
        if is_broker and MIN_INSYNC_REPLICAS in image.configs[kind, name]:
            yield ConfigRecord(
                resource_type=kind, resource_name=name, name=MIN_INSYNC_REPLICAS, value=None
            )
    if MIN_INSYNC_REPLICAS not in image.config(ConfigType.BROKER, CLUSTER):
        yield ConfigRecord(
            resource_type=ConfigType.BROKER,
            resource_name=CLUSTER,
            name=MIN_INSYNC_REPLICAS,
            value=configs.static_text(MIN_INSYNC_REPLICAS) or "1",
        )
