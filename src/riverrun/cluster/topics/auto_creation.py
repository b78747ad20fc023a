"""The form of topics that are created on first use."""

from __future__ import annotations

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.topics.create_topics import DEFAULT
from riverrun.metadata.image import Image
from riverrun.model.names import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreatableTopicConfig


def offsets_topic(configs: Configs, image: Image) -> CreatableTopic:
    """__consumer_offsets as Kafka creates it, but with at most as many replicas as brokers."""
    replicas = configs.static_int("offsets.topic.replication.factor")
    texts = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(configs.static_int("offsets.topic.segment.bytes")),
    }
    return CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=configs.static_int("offsets.topic.num.partitions"),
        replication_factor=min(replicas, max(len(image.brokers), 1)),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=text) for name, text in texts.items()),
    )


def transactions_topic(configs: Configs, image: Image) -> CreatableTopic:
    """__transaction_state as Kafka creates it, but with at most as many replicas as brokers."""
    wanted = configs.static_int("transaction.state.log.replication.factor")
    replicas = min(wanted, max(len(image.brokers), 1))
    min_isr = min(configs.static_int("transaction.state.log.min.isr"), replicas)
    texts = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min_isr),
        "segment.bytes": str(configs.static_int("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }
    return CreatableTopic(
        name=TRANSACTIONS_TOPIC,
        num_partitions=configs.static_int("transaction.state.log.num.partitions"),
        replication_factor=replicas,
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=text) for name, text in texts.items()),
    )


def creatable(configs: Configs, image: Image, name: str) -> CreatableTopic | None:
    """A topic with default partitions and replicas; None for internal topics not in use yet."""
    if name == OFFSETS_TOPIC:
        return offsets_topic(configs, image)
    if name == TRANSACTIONS_TOPIC:
        return transactions_topic(configs, image)
    if name in INTERNAL_TOPICS:
        return None
    return CreatableTopic(
        name=name,
        num_partitions=DEFAULT,
        replication_factor=DEFAULT,
        assignments=(),
        configs=(),
    )
