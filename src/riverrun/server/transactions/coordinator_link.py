"""The way from a partition's leader to the transaction coordinators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.ports.aio import OwnedTasks
from riverrun.server.dispatch.redirects import broker_endpoint
from riverrun.server.transactions.broker_channels import BrokerChannels
from riverrun.server.transactions.sweeper import TransactionSweeper
from riverrun.server.transactions.verification import TransactionVerifier, transaction_coordinator
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_partitions_to_txn_request import AddPartitionsToTxnRequest
from riverrun.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from riverrun.replication.replicas import Replicas
    from riverrun.server.services import BrokerServices, NodeServices

REQUEST_SECONDS_MAX: Final = 10.0


class CoordinatorLink:
    """Connections to coordinators, and the components that ask them."""

    def __init__(
        self, node: NodeServices, tasks: OwnedTasks, services: Callable[[], BrokerServices]
    ) -> None:
        """``services`` handles the requests to this node itself."""
        self._channels = BrokerChannels(
            node.settings.node_id,
            name="riverrun-verification",
            endpoint_of=lambda other: broker_endpoint(node, other),
            services=services,
        )
        self.verifier = TransactionVerifier(
            coordinator_of=lambda key: transaction_coordinator(node.metadata.current, key),
            send=self._send,
            tasks=tasks,
            settings=lambda: node.configs.effective(
                node.metadata.current, node.settings.verification
            ),
        )
        self._node = node

    def sweeper(self, replicas: Replicas) -> TransactionSweeper:
        """The search for transactions that no coordinator knows."""
        node = self._node
        settings = node.settings.transaction
        return TransactionSweeper(
            replicas,
            node_id=node.settings.node_id,
            image=lambda: node.metadata.current,
            request=self.request,
            timeout_max_ms=lambda: settings.timeout_max_ms,
            interval_ms=lambda: settings.sweep_interval_ms,
            clock=node.clock,
            metrics=node.metrics,
        )

    async def _send(
        self, node: NodeId, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        response: AddPartitionsToTxnResponse = await self.request(
            node, ApiKey.ADD_PARTITIONS_TO_TXN, request
        )
        return response

    async def request(self, node: NodeId, key: ApiKey, message: Struct) -> Any:
        """The response of a broker. Raises OSError, UnsupportedApi or KafkaError."""
        return await self._channels.request(node, key, message, timeout_s=REQUEST_SECONDS_MAX)

    def close(self) -> None:
        self._channels.close()
