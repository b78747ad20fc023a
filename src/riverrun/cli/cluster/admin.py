"""Changes to the cluster's nodes: unregister a broker."""

from __future__ import annotations

from riverrun.cli.cluster.report import BrokerRow, ask_report
from riverrun.cli.support.session import NotFound, check
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse


async def find_gone(pool: ConnectionPool, node: int) -> BrokerRow:
    """Check that a broker may be unregistered: a running one would register again at once."""
    report = await ask_report(pool, with_lag=False)
    brokers = {broker.id: broker for broker in report.brokers}
    if node not in brokers:
        raise NotFound(f"there is no broker {node}; `riverrun cluster nodes` lists them")
    if not brokers[node].is_fenced:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"node {node} is up: stop it first")
    if any(voter.id == node for voter in report.quorum.voters):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"node {node} is a voter: first run `riverrun quorum remove {node}`",
        )
    return brokers[node]


async def unregister(pool: ConnectionPool, broker: BrokerRow) -> None:
    answer: UnregisterBrokerResponse = await pool.request(
        ApiKey.UNREGISTER_BROKER,
        UnregisterBrokerRequest(broker_id=broker.id),
        is_repeatable=False,
    )
    check(answer.error_code, answer.error_message, f"node {broker.id}")
