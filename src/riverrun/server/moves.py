"""Builds the parts that verify moves and roll them back, and sends digests to new replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.security import SecuritySource, no_security
from riverrun.cluster.configs.alter_configs import ConfigOperation
from riverrun.metadata.image import ConfigType
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicPartition
from riverrun.placement.planner.stored_plan import ROLLBACKS, StoredRollback, encode
from riverrun.ports.aio import OwnedTasks
from riverrun.replication.moves.latency import ProduceLatency
from riverrun.replication.moves.rollback import CopyDisk, Rollbacks
from riverrun.replication.moves.verification import (
    VerificationQueue,
    VerificationUnsupported,
    Verifier,
)
from riverrun.replication.settings import ReplicationSettings
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.services import BrokerServices, NodeServices
from riverrun.storage.digests.digester import Digester
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
)
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)
from riverrun.wire.private.verify_replica_request import VerifyReplicaRequest
from riverrun.wire.private.verify_replica_response import VerifyReplicaResponse

CANCEL_SECONDS_MAX: Final = 10.0
REASON_SECONDS_MAX: Final = 2.0
"""A rollback does not wait longer for the place where its reason is kept."""
VERIFY_SECONDS_MAX: Final = 600.0
"""For a new replica to read one part of its copy, at a limited rate and after others."""
CONNECT_SECONDS_MAX: Final = 5.0
REFUSALS_MAX: Final = 3
"""Requests in a row after which a node closed the connection, before it counts as one without
VerifyReplica."""


def current_settings(node: NodeServices) -> ReplicationSettings:
    return node.configs.effective(node.metadata.current, node.settings.replication)


def build_digester(node: NodeServices) -> Digester:
    return Digester(
        node.logs.files,
        node.log_manager.jobs,
        in_thread=node.log_manager.in_thread,
        bytes_per_second_max=lambda: max(current_settings(node).reassignment_verify_rate, 0),
    )


def _build_rollbacks(services: BrokerServices, channel: ControllerChannel) -> Rollbacks:
    async def send(
        request: AlterPartitionReassignmentsRequest,
    ) -> AlterPartitionReassignmentsResponse:
        response: AlterPartitionReassignmentsResponse = await channel.request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, timeout_s=CANCEL_SECONDS_MAX
        )
        return response

    async def store_reasons(changes: Mapping[TopicPartition, StoredRollback | None]) -> None:
        rows = tuple(
            AlterableConfig(
                name=str(name),
                config_operation=ConfigOperation.DELETE if one is None else ConfigOperation.SET,
                value=None if one is None else encode(one),
            )
            for name, one in changes.items()
        )
        resource = AlterConfigsResource(
            resource_type=ConfigType.PLAN, resource_name=ROLLBACKS, configs=rows
        )
        response: IncrementalAlterConfigsResponse = await channel.request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
            timeout_s=REASON_SECONDS_MAX,
        )
        if (row := response.responses[0]).error_code is not ErrorCode.NONE:
            raise KafkaError(row.error_code, row.error_message)

    async def used_ratio() -> float:
        space = await services.log_manager.in_thread(services.logs.space)
        return 1 - space.usable_bytes / max(space.total_bytes, 1)

    return Rollbacks(
        services.replicas,
        services.settings.node_id,
        image=lambda: services.metadata.current,
        send=send,
        store_reasons=store_reasons,
        settings=lambda: current_settings(services),
        disk=CopyDisk(is_full=lambda: services.log_manager.is_disk_full, used_ratio=used_ratio),
        latency=ProduceLatency(
            services.metrics.histogram(
                "riverrun_request_seconds",
                "Time from a request to its response.",
                api=ALL_APIS[ApiKey.PRODUCE].title,
            )
        ),
        clock=services.clock,
        metrics=services.metrics,
    )


class CopyConnections:
    """Connections to the nodes of new replicas. ``close`` at the end."""

    def __init__(
        self,
        endpoint_of: Callable[[NodeId], tuple[str, int] | None],
        security: SecuritySource = no_security,
    ) -> None:
        self._endpoint_of = endpoint_of
        self._security = security
        self._connections: dict[NodeId, Connection] = {}
        self._refusals: dict[NodeId, int] = {}

    async def send(self, node: NodeId, request: VerifyReplicaRequest) -> VerifyReplicaResponse:
        """Raises OSError or ``VerificationUnsupported``."""
        connection = await self._connect(node)
        try:
            response: VerifyReplicaResponse = await connection.request(
                ApiKey.VERIFY_REPLICA, request, version=0, timeout_s=VERIFY_SECONDS_MAX
            )
        except ConnectionResetError as error:
            # A node that does not know the API closes the connection. One that stops does too, but
            # does not accept the next connection.
            self._refusals[node] = self._refusals.get(node, 0) + 1
            if self._refusals[node] >= REFUSALS_MAX:
                raise VerificationUnsupported from error
            raise
        self._refusals.pop(node, None)
        return response

    async def _connect(self, node: NodeId) -> Connection:
        endpoint = self._endpoint_of(node)
        if endpoint is None:
            raise ConnectionError(f"the address of node {node} is not known")
        host, port = endpoint
        known = self._connections.get(node)
        if known is not None and not known.is_closed and known.address == f"{host}:{port}":
            return known
        if known is not None:
            known.close()
        try:
            opened = await Connection.connect(
                host,
                port,
                client_id="riverrun-moves",
                connect_timeout_s=CONNECT_SECONDS_MAX,
                security=self._security(),
            )
        except (OSError, UnsupportedApi) as error:
            self._refusals.pop(node, None)
            raise ConnectionError(str(error)) from error
        other = self._connections.get(node)
        if other is not None and other is not known and not other.is_closed:
            opened.close()  # Another request has connected meanwhile.
            return other
        self._connections[node] = opened
        return opened

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class Moves:
    """The moves of one node's partitions. ``start`` runs them in tasks, ``close`` at the end."""

    def __init__(
        self,
        services: BrokerServices,
        queue: VerificationQueue,
        digester: Digester,
        channel: ControllerChannel,
        endpoint_of: Callable[[NodeId], tuple[str, int] | None],
    ) -> None:
        self._digester = digester
        self._connections = CopyConnections(endpoint_of, services.security.to_brokers)
        self._rollbacks = _build_rollbacks(services, channel)
        self._verifier = Verifier(
            queue,
            services.settings.node_id,
            digester=digester,
            send=self._connections.send,
            roll_back=self._rollbacks.request,
            bytes_per_second_max=lambda: current_settings(services).reassignment_verify_rate,
            clock=services.clock,
            metrics=services.metrics,
        )

    def start(self, tasks: OwnedTasks) -> None:
        tasks.start(self._rollbacks.run(), name="rollbacks")
        tasks.start(self._verifier.run(), name="verification")

    async def disk_failed(self) -> None:
        await self._rollbacks.disk_failed()

    def close(self) -> None:
        self._connections.close()
        self._digester.close()
