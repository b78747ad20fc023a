"""What a topic's settings mean for elections: how many replicas suffice, and what may be risked."""

from __future__ import annotations

from typing import NamedTuple

from riverrun.cluster.configs.node_configs import (
    CLUSTER,
    MIN_INSYNC_REPLICAS,
    Configs,
    is_elr_enabled,
)
from riverrun.metadata.image import ConfigType, Image, TopicImage


class TopicRules(NamedTuple):
    """A tuple, since a failover makes one for every topic."""

    minimum: int
    """The effective minimum of in-sync replicas: never more than there are replicas, or a topic
    with one replica would be eligible for nothing."""
    is_elr_enabled: bool
    is_unclean_enabled: bool


def rules_of(configs: Configs, image: Image, topic: TopicImage) -> TopicRules:
    settings = configs.log_settings(image, topic.name)
    replicas = len(topic.partitions[0].replicas) if topic.partitions else 1
    return TopicRules(
        minimum=min(min_insync_replicas(image, topic.name), replicas),
        is_elr_enabled=is_elr_enabled(image),
        is_unclean_enabled=settings.unclean_leader_election_enable,
    )


def min_insync_replicas(image: Image, topic: str) -> int:
    """From the image alone, so that all nodes judge by the same number (KIP-966)."""
    for texts in (image.config(ConfigType.TOPIC, topic), image.config(ConfigType.BROKER, CLUSTER)):
        text = texts.get(MIN_INSYNC_REPLICAS, "")
        if text.isdigit():
            return int(text)
    return 1
