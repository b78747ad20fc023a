"""Rights that Apache Kafka cannot show: those of riverrun's own APIs, and side effects of refused
requests. `tests/differential/scripts/matrix` has the rights of Kafka's APIs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.model.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from riverrun.security.acls import AclOperation
from riverrun.wire.apis import APIS, KNOWN_APIS, ROUTES, ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.headers import (
    has_flexible_response_header,
    read_response_header,
    request_frame,
)
from riverrun.wire.private.append_audit_request import AppendAuditRequest
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from riverrun.wire.private.describe_quota_use_request import DescribeQuotaUseRequest
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest
from riverrun.wire.private.verify_replica_request import VerifyReplicaRequest
from tests.differential.run import SETTINGS
from tests.differential.script import Script
from tests.differential.scripts.matrix.rights import (
    NOBODY,
    TRIED,
    Right,
    Rulebook,
    attempts,
    on_cluster,
    on_group,
    on_topic,
)
from tests.differential.secured import log_in, login_address, serve_secured
from tests.plain_client import PlainClient
from tests.processes import Server

CLUSTER_FAILED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
DESCRIBE = on_cluster(AclOperation.DESCRIBE)


@dataclass(frozen=True)
class PrivateCall:
    """A request of our own, the rights it needs, and the codes without each and with all."""

    key: ApiKey
    request: Any
    rights: tuple[Right, ...]
    refusals: tuple[ErrorCode, ...]
    given: ErrorCode = ErrorCode.NONE


CALLS = (
    PrivateCall(
        ApiKey.DISCOVER_NODE,
        DiscoverNodeRequest(node_id=9, directory_id=None),
        (DESCRIBE,),
        (CLUSTER_FAILED,),
    ),
    PrivateCall(
        ApiKey.DESCRIBE_NODE, DescribeNodeRequest(subject="node"), (DESCRIBE,), (CLUSTER_FAILED,)
    ),
    PrivateCall(
        ApiKey.DESCRIBE_NODE, DescribeNodeRequest(subject="traffic"), (DESCRIBE,), (CLUSTER_FAILED,)
    ),
    PrivateCall(
        ApiKey.DESCRIBE_NODE, DescribeNodeRequest(subject="history"), (DESCRIBE,), (CLUSTER_FAILED,)
    ),
    PrivateCall(
        ApiKey.DESCRIBE_NODE,
        DescribeNodeRequest(subject="history", query='{"topic":"orders"}'),
        (on_topic(AclOperation.DESCRIBE),),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED,),
    ),
    PrivateCall(
        ApiKey.DESCRIBE_NODE,
        DescribeNodeRequest(subject="history", query='{"group":"group"}'),
        (on_group(AclOperation.DESCRIBE),),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED,),
    ),
    PrivateCall(
        ApiKey.DESCRIBE_QUOTA_USE,
        DescribeQuotaUseRequest(),
        (on_cluster(AclOperation.DESCRIBE_CONFIGS),),
        (CLUSTER_FAILED,),
    ),
    PrivateCall(
        ApiKey.VERIFY_REPLICA,
        VerifyReplicaRequest(
            leader_id=9,
            topic_id=UUID(int=9),
            partition_index=0,
            leader_epoch=0,
            kind=0,
            start_offset=0,
            buckets=(),
        ),
        (on_cluster(AclOperation.CLUSTER_ACTION),),
        (CLUSTER_FAILED,),
        ErrorCode.INVALID_REQUEST,
    ),
    PrivateCall(
        ApiKey.APPEND_AUDIT,
        AppendAuditRequest(broker_id=1, incarnation_id=UUID(int=9), partition_index=0, batch=b""),
        (on_cluster(AclOperation.CLUSTER_ACTION),),
        (CLUSTER_FAILED,),
        CLUSTER_FAILED,  # the sender must also know the broker's registration
    ),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("private") / "node"
    with serve_secured(folder, SETTINGS, "riverrun") as running:
        yield running


@pytest.fixture
def script(server: Server) -> Iterator[Script]:
    made = Script(server.address, "private", "newest")
    yield made
    made.close()


def ask(server: Server, user: str, key: ApiKey, request: Any) -> Any:
    api, body = KNOWN_APIS[key], encode_request(key, 0, request)
    with PlainClient(login_address(server.address)) as client:
        log_in(client, user)
        client.send_raw(bytes(request_frame(api, 0, 7, "tests", body)))
        frame = client.receive_frame()
    is_flexible = has_flexible_response_header(api, 0)
    _, at = read_response_header(frame, is_flexible=is_flexible)
    return decode_response(key, 0, frame, at)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.key.name}-{len(call.rights)}")
def test_each_private_api_needs_its_rights(
    server: Server, script: Script, call: PrivateCall
) -> None:
    cases = list(attempts(call.rights))
    users = dict(zip((NOBODY, *TRIED), cases, strict=False))
    Rulebook(script).replace({user: rules for user, (_, rules) in users.items()})
    found = {
        attempt: ask(server, user, call.key, call.request).error_code
        for user, (attempt, _) in users.items()
    }
    assert found == dict(zip([label for label, _ in cases], _expected(call), strict=True))


def _expected(call: PrivateCall) -> Sequence[ErrorCode]:
    left_out = call.refusals if len(call.rights) > 1 else ()
    return (call.refusals[0], *left_out, *call.refusals, call.given)


def test_every_private_api_of_clients_is_in_the_table() -> None:
    assert {call.key for call in CALLS} == {*ROUTES} - {*APIS}


@pytest.mark.parametrize("kind", [0, 1], ids=["group", "transaction"])
def test_refused_find_coordinator_creates_no_internal_topic(
    server: Server, script: Script, kind: int
) -> None:
    request = {"key_type": kind, "coordinator_keys": ["one", "two"]}
    with PlainClient(login_address(server.address)) as client:
        log_in(client, NOBODY)
        response = client.request("find_coordinator", 6, request)
    assert len(response["coordinators"]) == 2
    topics = script.quietly("metadata", {"topics": None}, version=12)["topics"]
    assert not {row["name"] for row in topics} & {OFFSETS_TOPIC, TRANSACTIONS_TOPIC}
