"""The settings of a topic that decide which replicas may lead."""

from __future__ import annotations

from typing import Final, NamedTuple

from riverrun.cluster.configs.node_configs import CLUSTER, MIN_INSYNC_REPLICAS, Configs
from riverrun.metadata.image import ConfigType, Image, TopicImage

ELR_FEATURE: Final = "eligible.leader.replicas.version"


class ElectionRules(NamedTuple):
    """A tuple, because a failover creates one for every topic."""

    min_isr: int
    """min.insync.replicas. Partitions with fewer replicas have a lower one, see
    ``PartitionImage.min_in_sync``."""
    is_elr_enabled: bool
    is_unclean_enabled: bool


def election_rules(configs: Configs, image: Image, topic: TopicImage) -> ElectionRules:
    settings = configs.log_settings(image, topic.name)
    return ElectionRules(
        min_isr=min_insync_replicas(image, topic.name),
        is_elr_enabled=is_elr_enabled(image),
        is_unclean_enabled=settings.unclean_leader_election_enable,
    )


def is_elr_enabled(image: Image) -> bool:
    return image.features.get(ELR_FEATURE, 0) > 0


def min_insync_replicas(image: Image, topic: str) -> int:
    """Taken from the image alone, so that all nodes use the same number (KIP-966)."""
    for texts in (image.config(ConfigType.TOPIC, topic), image.config(ConfigType.BROKER, CLUSTER)):
        text = texts.get(MIN_INSYNC_REPLICAS, "")
        if text.isdigit():
            return int(text)
    return 1
