"""The way from a partition's leader to the transaction coordinators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverrun.model.ids import NodeId
from riverrun.ports.aio import OwnedTasks
from riverrun.server.dispatch.redirects import broker_endpoint
from riverrun.server.transactions.broker_channels import BrokerChannels
from riverrun.server.transactions.verification import TransactionVerifier, transaction_coordinator
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_partitions_to_txn_request import AddPartitionsToTxnRequest
from riverrun.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices, NodeServices

REQUEST_SECONDS_MAX: Final = 10.0


class CoordinatorLink:
    """Connections to coordinators, and the verifier that asks them."""

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
        )

    async def _send(
        self, node: NodeId, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        response: AddPartitionsToTxnResponse = await self._channels.request(
            node, ApiKey.ADD_PARTITIONS_TO_TXN, request, timeout_s=REQUEST_SECONDS_MAX
        )
        return response

    def close(self) -> None:
        self._channels.close()
