"""Voter changes: identifies the node and sends the request to the controller."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from riverrun.admin.cluster.report import ask_brokers
from riverrun.admin.quorum.report import QuorumReplicaRow, ask_quorum, written_id
from riverrun.admin.requests import NotFound, check
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_raft_voter_request import AddRaftVoterRequest, Listener
from riverrun.wire.messages.add_raft_voter_response import AddRaftVoterResponse
from riverrun.wire.messages.remove_raft_voter_request import RemoveRaftVoterRequest
from riverrun.wire.messages.remove_raft_voter_response import RemoveRaftVoterResponse
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest
from riverrun.wire.private.discover_node_response import DiscoverNodeResponse

LISTENER = "CONTROLLER"
TIMEOUT_MS = 30_000
ANSWER_S_MAX = 40.0
NO_NODE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterCandidate:
    """A node that may become a voter."""

    id: int
    directory_id: UUID | None
    host: str
    port: int

    def described(self) -> dict[str, object]:
        return {
            "id": self.id,
            "directory_id": written_id(self.directory_id),
            "endpoint": f"{self.host}:{self.port}",
        }


async def find_candidate(pool: ConnectionPool, node: str) -> VoterCandidate:
    """Find a node by broker id or by address."""
    if node.isdigit():
        brokers = {b.broker_id: (b.host, b.port) for b in (await ask_brokers(pool)).brokers}
        if int(node) not in brokers:
            raise NotFound(
                f"broker {node} does not exist; `riverrun cluster nodes` lists the brokers. For a "
                f"dedicated controller, pass HOST:PORT of its controller listener."
            )
        address = brokers[int(node)]
        # A broker is registered shortly before it listens.
        found = await pool.try_again(lambda: _discover(pool, address))
    else:
        try:
            [address] = parse_bootstrap(node)
        except ValueError as error:
            raise NotFound(f"{node} is neither a node id nor an address: {error}") from None
        found = await _discover(pool, address)
    cluster_id = (await ask_brokers(pool)).cluster_id
    if found.cluster_id != cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the node at {address[0]}:{address[1]} belongs to cluster {found.cluster_id}, not "
            f"to {cluster_id}",
        )
    if not found.is_controller or not found.controller:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"node {found.node_id} does not have the controller role: start it with "
            f"process.roles=broker,controller and a listener CONTROLLER",
        )
    at = found.controller[0]
    return VoterCandidate(
        id=found.node_id, directory_id=found.directory_id, host=at.host, port=at.port
    )


async def _discover(pool: ConnectionPool, address: tuple[str, int]) -> DiscoverNodeResponse:
    """Ask a node for its identity; only riverrun nodes support this request."""
    host, port = address
    connection = await pool.connect(address)
    try:
        answer: DiscoverNodeResponse = await connection.request(
            ApiKey.DISCOVER_NODE,
            DiscoverNodeRequest(node_id=NO_NODE, directory_id=None),
            version=0,
        )
    except ConnectionResetError:
        raise ConnectionError(
            f"{host}:{port} closed the connection on DiscoverNode; only riverrun nodes support it"
        ) from None
    finally:
        connection.close()
    check(answer.error_code, None, f"node at {host}:{port}")
    return answer


async def add_voter(pool: ConnectionPool, candidate: VoterCandidate) -> None:
    cluster_id = (await ask_brokers(pool)).cluster_id
    request = AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=TIMEOUT_MS,
        voter_id=candidate.id,
        voter_directory_id=candidate.directory_id,
        listeners=(Listener(name=LISTENER, host=candidate.host, port=candidate.port),),
    )
    answer: AddRaftVoterResponse = await pool.request(
        ApiKey.ADD_RAFT_VOTER, request, is_repeatable=False, timeout_s=ANSWER_S_MAX
    )
    check(answer.error_code, answer.error_message, f"node {candidate.id}")


async def find_voter(pool: ConnectionPool, node: int) -> QuorumReplicaRow:
    quorum = await ask_quorum(pool)
    for replica in quorum.voters:
        if replica.id == node:
            return replica
    raise NotFound(f"node {node} is not a voter; `riverrun quorum status` lists the voters")


async def remove_voter(pool: ConnectionPool, voter: QuorumReplicaRow) -> None:
    request = RemoveRaftVoterRequest(
        cluster_id=(await ask_brokers(pool)).cluster_id,
        voter_id=voter.id,
        voter_directory_id=voter.directory_id,
    )
    answer: RemoveRaftVoterResponse = await pool.request(
        ApiKey.REMOVE_RAFT_VOTER, request, is_repeatable=False, timeout_s=ANSWER_S_MAX
    )
    check(answer.error_code, answer.error_message, f"node {voter.id}")
