"""Requests of nodes, sent by users to the listeners of clients and of controllers.

With the right, a request is refused for another reason: it names another cluster, or a broker that
does not exist.
"""

import struct
from typing import Any

from riverrun.security.acls import AclOperation as Op
from tests.differential.script import Script
from tests.differential.scripts.matrix.cluster import CONTROLLER_CALLS
from tests.differential.scripts.matrix.rights import NOBODY, on_cluster
from tests.differential.scripts.matrix.table import UNKNOWN_ID, Fields, GuardedCall, Stock, try_all
from tests.differential.scripts.requests import new_topic, without_defaults
from tests.plain_client import parse_response, request_frame

OTHER_CLUSTER = "another-cluster"
NO_BROKER = 99
METADATA_TOPIC = "__cluster_metadata"
METADATA_ID = "00000000-0000-0000-0000-000000000001"
LENGTH_BYTES = 4
CREATE_TOPICS_VERSION = 7
LISTENERS = [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9, "security_protocol": 0}]


def _quorum(**partition: Any) -> Fields:
    """A request about the metadata log of another cluster."""
    row = {"partition_index": 0, "partition": 0, **partition}
    topic = {"topic_name": METADATA_TOPIC, "name": METADATA_TOPIC, "topic": METADATA_TOPIC}
    topics = [{**topic, "topic_id": METADATA_ID, "partitions": [row]}]
    return {"cluster_id": OTHER_CLUSTER, "voter_id": 1, "replica_id": NO_BROKER, "topics": topics}


def _vote(stock: Stock) -> Fields:
    return _quorum(replica_epoch=1, replica_id=NO_BROKER, last_offset_epoch=0, last_offset=0)


def _epoch(stock: Stock) -> Fields:
    return _quorum(leader_id=NO_BROKER, leader_epoch=1, preferred_candidates=[])


def _snapshot(stock: Stock) -> Fields:
    snapshot = {"end_offset": 1, "epoch": 1}
    return {**_quorum(current_leader_epoch=1, snapshot_id=snapshot, position=0), "max_bytes": 1000}


def _fetch(stock: Stock) -> Fields:
    """Only Fetch 12 and later have the id of the cluster."""
    return {
        **_quorum(current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1000),
        "replica_state": {"replica_id": NO_BROKER, "replica_epoch": -1},
        "session_epoch": -1,
        "max_bytes": 1000,
    }


def _registration(stock: Stock) -> Fields:
    return {
        "broker_id": NO_BROKER,
        "cluster_id": OTHER_CLUSTER,
        "incarnation_id": UNKNOWN_ID,
        "listeners": LISTENERS,
        "log_dirs": [UNKNOWN_ID],
        "previous_broker_epoch": -1,
    }


def _broker(stock: Stock) -> Fields:
    return {"broker_id": NO_BROKER, "broker_epoch": 7}


def _isr(stock: Stock) -> Fields:
    return {**_broker(stock), "topics": [{"topic_id": UNKNOWN_ID, "partitions": []}]}


def _controller(stock: Stock) -> Fields:
    """No controller migrates from ZooKeeper any more."""
    fields = {"controller_id": NO_BROKER, "incarnation_id": UNKNOWN_ID, "listeners": LISTENERS}
    return {**fields, "zk_migration_ready": True}


def _voter(stock: Stock) -> Fields:
    fields = {"cluster_id": OTHER_CLUSTER, "voter_id": NO_BROKER, "voter_directory_id": UNKNOWN_ID}
    return {**fields, "current_leader_epoch": 1, "listeners": LISTENERS}


def _envelope(user: str) -> Any:
    """A request of this user, which a broker forwards."""

    def fields(stock: Stock) -> Fields:
        topics = [new_topic(stock.name("new"))]
        inner = {"topics": topics, "timeout": 10000, "validate_only": True}
        frame = request_frame("create_topics", CREATE_TOPICS_VERSION, inner)
        return {
            "request_data": frame[LENGTH_BYTES:],
            "request_principal": _principal(user),
            "client_host_address": bytes((127, 0, 0, 1)),
        }

    return fields


def _inner(response: Any) -> Any:
    """The response in an envelope, which has rights of its own."""
    data = response["response_data"]
    inner = parse_response("create_topics", CREATE_TOPICS_VERSION, data)[1] if data else None
    return {"error_code": response["error_code"], "response": inner and without_defaults(inner)}


def _principal(user: str) -> bytes:
    """DefaultPrincipalData, version 0."""
    kind = b"User"
    return b"".join(
        (
            struct.pack(">h", 0),
            bytes((len(kind) + 1,)) + kind,
            bytes((len(user) + 1,)) + user.encode(),
            bytes((0, 0)),
        )
    )


_FIELDS = {
    "vote": _vote,
    "begin_quorum_epoch": _epoch,
    "end_quorum_epoch": _epoch,
    "alter_partition": _isr,
    "fetch_snapshot": _snapshot,
    "broker_registration": _registration,
    "broker_heartbeat": _broker,
    "allocate_producer_ids": _broker,
    "controller_registration": _controller,
    "assign_replicas_to_dirs": _broker,
    "update_raft_voter": _voter,
}
APIS = (*_FIELDS, "envelope")
"""APIs that only controllers serve."""

_RIGHT = (on_cluster(Op.CLUSTER_ACTION),)
CALLS = [
    *(GuardedCall(api=api, rights=_RIGHT, fields=fields) for api, fields in _FIELDS.items()),
    *(
        GuardedCall(
            api="envelope", label=f"of {user}", rights=_RIGHT, fields=_envelope(user), only=_inner
        )
        for user in (NOBODY, "ANONYMOUS")  # the second is a super user
    ),
]
_FETCHES = [GuardedCall(api="fetch", rights=_RIGHT, fields=_fetch, since=12)]


CALLS_TO_CONTROLLERS = [*CALLS, *_FETCHES, *CONTROLLER_CALLS]


def nodes(script: Script) -> None:
    try_all(Stock(script), CALLS)


def controllers(script: Script) -> None:
    stock = Stock(script)
    stock.make_topics("orders")
    try_all(stock, CALLS_TO_CONTROLLERS, listener="@controller")
