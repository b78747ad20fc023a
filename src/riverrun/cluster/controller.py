"""The controller of a cluster: every request that changes metadata, judged against an image.

Pure: each method gives records and a response and changes nothing. ``runner.py`` stores the records
and lets the response go; requests arrive there by ``server/requests``. What a node does not need to
start is loaded by the first request for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from riverrun.cluster import activation
from riverrun.cluster.brokers import heartbeats, registration
from riverrun.cluster.configs.sources import Configs
from riverrun.cluster.outcome import Outcome
from riverrun.cluster.partitions import leadership
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.randomness import Randomness

if TYPE_CHECKING:
    from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
    from riverrun.wire.messages.allocate_producer_ids_response import AllocateProducerIdsResponse
    from riverrun.wire.messages.alter_configs_request import AlterConfigsRequest
    from riverrun.wire.messages.alter_configs_response import AlterConfigsResponse
    from riverrun.wire.messages.alter_partition_request import AlterPartitionRequest
    from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse
    from riverrun.wire.messages.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
    from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse
    from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
    from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
    from riverrun.wire.messages.broker_registration_request import BrokerRegistrationRequest
    from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse
    from riverrun.wire.messages.controller_registration_request import ControllerRegistrationRequest
    from riverrun.wire.messages.controller_registration_response import (
        ControllerRegistrationResponse,
    )
    from riverrun.wire.messages.create_partitions_request import CreatePartitionsRequest
    from riverrun.wire.messages.create_partitions_response import CreatePartitionsResponse
    from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
    from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
    from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest
    from riverrun.wire.messages.delete_topics_response import DeleteTopicsResponse
    from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest
    from riverrun.wire.messages.elect_leaders_response import ElectLeadersResponse
    from riverrun.wire.messages.incremental_alter_configs_request import (
        IncrementalAlterConfigsRequest,
    )
    from riverrun.wire.messages.incremental_alter_configs_response import (
        IncrementalAlterConfigsResponse,
    )
    from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
    from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse
    from riverrun.wire.messages.update_features_request import UpdateFeaturesRequest
    from riverrun.wire.messages.update_features_response import UpdateFeaturesResponse


class Controller:
    """Knows the node's settings and how to draw lots; holds nothing else."""

    def __init__(self, configs: Configs, randomness: Randomness) -> None:
        self.configs = configs
        self._randomness = randomness

    def activate(self, image: Image) -> Outcome[None]:
        return activation.activate(self.configs, image)

    def create_topics(
        self, image: Image, request: CreateTopicsRequest
    ) -> Outcome[CreateTopicsResponse]:
        from riverrun.cluster.topics import changes as topics

        return topics.create_topics(self.configs, image, request, self._randomness)

    def delete_topics(
        self, image: Image, request: DeleteTopicsRequest
    ) -> Outcome[DeleteTopicsResponse]:
        """TOPIC_DELETION_DISABLED for all of them where delete.topic.enable says so."""
        from riverrun.cluster.topics import changes as topics

        if self.configs.static_text("delete.topic.enable") == "false":
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
        return topics.delete_topics(image, request)

    def create_partitions(
        self, image: Image, request: CreatePartitionsRequest
    ) -> Outcome[CreatePartitionsResponse]:
        from riverrun.cluster.partitions import creation as partitions

        return partitions.create_partitions(image, request, self._randomness)

    def alter_configs(
        self, image: Image, request: AlterConfigsRequest
    ) -> Outcome[AlterConfigsResponse]:
        from riverrun.cluster.configs import changes as config_changes

        return config_changes.alter(self.configs, image, request)

    def incremental_alter_configs(
        self, image: Image, request: IncrementalAlterConfigsRequest
    ) -> Outcome[IncrementalAlterConfigsResponse]:
        from riverrun.cluster.configs import changes as config_changes

        return config_changes.alter_incrementally(self.configs, image, request)

    # -- Brokers and controllers ------------------------------------------------------------------

    def register(
        self, image: Image, request: BrokerRegistrationRequest, known: registration.Known
    ) -> Outcome[BrokerRegistrationResponse]:
        return registration.register(self.configs, image, request, known)

    def register_controller(
        self, image: Image, request: ControllerRegistrationRequest
    ) -> Outcome[ControllerRegistrationResponse]:
        return registration.register_controller(image, request)

    def unregister(
        self, image: Image, request: UnregisterBrokerRequest
    ) -> Outcome[UnregisterBrokerResponse]:
        return registration.unregister(self.configs, image, request)

    def heartbeat(
        self, image: Image, request: BrokerHeartbeatRequest, *, may_leave: bool
    ) -> Outcome[BrokerHeartbeatResponse]:
        return heartbeats.heartbeat(self.configs, image, request, may_leave=may_leave)

    def fence(self, image: Image, nodes: Collection[NodeId]) -> Outcome[None]:
        records = leadership.fence(self.configs, image, nodes)
        return Outcome(records=tuple(records), response=None)

    def alter_partition(
        self, image: Image, request: AlterPartitionRequest
    ) -> Outcome[AlterPartitionResponse]:
        from riverrun.cluster.partitions import alter_partition

        return alter_partition.alter_partition(self.configs, image, request)

    def assign_replicas(
        self, image: Image, request: AssignReplicasToDirsRequest
    ) -> Outcome[AssignReplicasToDirsResponse]:
        from riverrun.cluster.partitions import directories

        return directories.assign_replicas(self.configs, image, request)

    def allocate_producer_ids(
        self, image: Image, request: AllocateProducerIdsRequest
    ) -> Outcome[AllocateProducerIdsResponse]:
        from riverrun.cluster import producer_ids

        return producer_ids.allocate(image, request)

    # -- Elections and features -------------------------------------------------------------------

    def elect_leaders(
        self, image: Image, request: ElectLeadersRequest
    ) -> Outcome[ElectLeadersResponse]:
        from riverrun.cluster.partitions import elections

        return elections.elect_leaders(self.configs, image, request)

    def elect_leaderless(self, image: Image) -> Outcome[None]:
        records = leadership.elect_leaderless(self.configs, image)
        return Outcome(records=tuple(records), response=None)

    def balance(self, image: Image) -> Outcome[bool]:
        from riverrun.cluster.partitions import elections

        return elections.balance(self.configs, image)

    def update_features(
        self, image: Image, request: UpdateFeaturesRequest
    ) -> Outcome[UpdateFeaturesResponse]:
        from riverrun.cluster import features

        return features.update_features(self.configs, image, request)
