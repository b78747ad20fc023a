"""Every request to the controller that needs nothing but the image: judged, stored, answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from riverrun.cluster.controller import Controller
    from riverrun.cluster.outcome import Outcome
    from riverrun.metadata.image import Image
    from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
    from riverrun.wire.messages.allocate_producer_ids_response import AllocateProducerIdsResponse
    from riverrun.wire.messages.alter_configs_request import AlterConfigsRequest
    from riverrun.wire.messages.alter_configs_response import AlterConfigsResponse
    from riverrun.wire.messages.alter_partition_request import AlterPartitionRequest
    from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse
    from riverrun.wire.messages.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
    from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse
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
    from riverrun.wire.messages.update_features_request import UpdateFeaturesRequest
    from riverrun.wire.messages.update_features_response import UpdateFeaturesResponse

R = TypeVar("R")
Answer = Coroutine[Any, Any, R]


class Requests(ABC):
    """Each answer comes when what it says is committed; NOT_CONTROLLER where we are not active."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @abstractmethod
    def submit(self, judge: Callable[[Image], Outcome[R]], *, is_urgent: bool = False) -> Answer[R]:
        """``is_urgent``: from a node, and not to wait behind clients."""

    # -- From clients -----------------------------------------------------------------------------

    def create_topics(self, request: CreateTopicsRequest) -> Answer[CreateTopicsResponse]:
        return self.submit(lambda image: self._controller.create_topics(image, request))

    def delete_topics(self, request: DeleteTopicsRequest) -> Answer[DeleteTopicsResponse]:
        return self.submit(lambda image: self._controller.delete_topics(image, request))

    def create_partitions(
        self, request: CreatePartitionsRequest
    ) -> Answer[CreatePartitionsResponse]:
        return self.submit(lambda image: self._controller.create_partitions(image, request))

    def alter_configs(self, request: AlterConfigsRequest) -> Answer[AlterConfigsResponse]:
        return self.submit(lambda image: self._controller.alter_configs(image, request))

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> Answer[IncrementalAlterConfigsResponse]:
        return self.submit(lambda image: self._controller.incremental_alter_configs(image, request))

    def elect_leaders(self, request: ElectLeadersRequest) -> Answer[ElectLeadersResponse]:
        return self.submit(lambda image: self._controller.elect_leaders(image, request))

    def update_features(self, request: UpdateFeaturesRequest) -> Answer[UpdateFeaturesResponse]:
        return self.submit(lambda image: self._controller.update_features(image, request))

    # -- From nodes -------------------------------------------------------------------------------

    def alter_partition(self, request: AlterPartitionRequest) -> Answer[AlterPartitionResponse]:
        return self.submit(
            lambda image: self._controller.alter_partition(image, request), is_urgent=True
        )

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> Answer[AssignReplicasToDirsResponse]:
        return self.submit(
            lambda image: self._controller.assign_replicas(image, request), is_urgent=True
        )

    def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> Answer[AllocateProducerIdsResponse]:
        return self.submit(lambda image: self._controller.allocate_producer_ids(image, request))

    def register_controller(
        self, request: ControllerRegistrationRequest
    ) -> Answer[ControllerRegistrationResponse]:
        return self.submit(lambda image: self._controller.register_controller(image, request))
