"""The controller of a cluster: every request that changes metadata, judged against an image.

Pure: each method gives records and a response and changes nothing. ``runner.py`` stores the records
and lets the response go; requests arrive there by ``server/requests``.
"""

from __future__ import annotations

from riverrun.cluster import (
    config_changes,
    partitions,
    producer_ids,
    registration,
    topics,
)
from riverrun.cluster.configs import Configs
from riverrun.cluster.outcome import Outcome
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.alter_configs_request import AlterConfigsRequest
from riverrun.wire.messages.alter_configs_response import AlterConfigsResponse
from riverrun.wire.messages.create_partitions_request import CreatePartitionsRequest
from riverrun.wire.messages.create_partitions_response import CreatePartitionsResponse
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest
from riverrun.wire.messages.delete_topics_response import DeleteTopicsResponse
from riverrun.wire.messages.incremental_alter_configs_request import (
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)


class Controller:
    """Knows the node's settings and how to draw lots; holds nothing else."""

    def __init__(self, configs: Configs, randomness: Randomness) -> None:
        self.configs = configs
        self._randomness = randomness

    def activate(self, image: Image) -> Outcome[None]:
        return registration.activate(self.configs, image)

    def register_broker(self, image: Image, one: registration.Registration) -> Outcome[int]:
        return registration.register_broker(image, one)

    def create_topics(
        self, image: Image, request: CreateTopicsRequest
    ) -> Outcome[CreateTopicsResponse]:
        return topics.create_topics(self.configs, image, request, self._randomness)

    def delete_topics(
        self, image: Image, request: DeleteTopicsRequest
    ) -> Outcome[DeleteTopicsResponse]:
        """TOPIC_DELETION_DISABLED for all of them where delete.topic.enable says so."""
        if self.configs.static_text("delete.topic.enable") == "false":
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
        return topics.delete_topics(image, request)

    def create_partitions(
        self, image: Image, request: CreatePartitionsRequest
    ) -> Outcome[CreatePartitionsResponse]:
        return partitions.create_partitions(image, request, self._randomness)

    def alter_configs(
        self, image: Image, request: AlterConfigsRequest
    ) -> Outcome[AlterConfigsResponse]:
        return config_changes.alter(self.configs, image, request)

    def incremental_alter_configs(
        self, image: Image, request: IncrementalAlterConfigsRequest
    ) -> Outcome[IncrementalAlterConfigsResponse]:
        return config_changes.alter_incrementally(self.configs, image, request)

    def allocate_producer_ids(self, image: Image, node: NodeId) -> Outcome[producer_ids.Block]:
        return producer_ids.allocate(image, node)
