"""Who stays eligible when min.insync.replicas changes.

A replica out of sync is eligible as long as nothing was committed without it, and that hangs on the
minimum: with a smaller one, those in sync may suffice to commit. Kafka forgets all eligible
replicas of a topic then (ClearElr); we forget those of partitions that can commit now, in the same
batch as the setting. Where nobody leads, nothing is committed, and they are still needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from riverrun.cluster.configs.node_configs import MIN_INSYNC_REPLICAS, Configs, is_elr_enabled
from riverrun.cluster.partitions.election_rules import rules_of
from riverrun.cluster.partitions.partition_change import Candidates, change, election_of
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image

if TYPE_CHECKING:
    from riverrun.metadata.records import ConfigRecord, PartitionChangeRecord


def with_eligibility(
    configs: Configs, image: Image, records: Sequence[ConfigRecord]
) -> list[ConfigRecord | PartitionChangeRecord]:
    """The records of changed settings, and of what they mean for eligible replicas."""
    together: list[ConfigRecord | PartitionChangeRecord] = list(records)
    if is_elr_enabled(image) and any(record.name == MIN_INSYNC_REPLICAS for record in records):
        together += _recounted(configs, image, records)
    return together


def _recounted(
    configs: Configs, image: Image, records: Sequence[ConfigRecord]
) -> list[PartitionChangeRecord]:
    delta = Delta(image)
    for record in records:
        delta.replay(record)
    after = delta.publish(offset=image.offset, epoch=image.epoch, timestamp=image.timestamp)
    candidates = Candidates(after)
    changed: list[PartitionChangeRecord] = []
    for topic in after.topics_by_name.values():
        if not any(partition.elr for partition in topic.partitions):
            continue
        rules = rules_of(configs, after, topic)
        for index, partition in enumerate(topic.partitions):
            if partition.elr:
                made = change(
                    topic.id, index, partition, rules, candidates, election=election_of(rules)
                )
                changed += () if made is None else (made,)
    return changed
