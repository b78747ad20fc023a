"""Attacks on a secure node. None succeeds, and a client that works meanwhile is not disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin
from uuid import UUID, uuid4

import pytest
from msgspec.structs import fields

from riverrun.cli.certs.authority import Authority
from riverrun.client.connection import Connection
from riverrun.client.security import ClientSecurity, client_security
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation
from riverrun.security.scram import ScramClient, ScramMechanism
from riverrun.server.network.settings import NetworkSettings
from riverrun.server.security.access import REQUIRED
from riverrun.storage.directory import METADATA_TOPIC_ID
from riverrun.wire.apis import CONTROLLER_ROUTES, KNOWN_APIS, ROUTES, ApiKey
from riverrun.wire.codec import decode_response, encode_request, message_class
from riverrun.wire.headers import request_frame
from riverrun.wire.messages.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from riverrun.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from riverrun.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from riverrun.wire.private.append_audit_request import AppendAuditRequest
from tests.processes import until
from tests.secure_node import SecureNode
from tests.security.bystander import SECONDS_MAX, Bystander

pytestmark = pytest.mark.slow

ATTACKER = "127.0.0.66"
"""The address of attackers. Limits are for each address, so good clients have another one."""
CLIENTS, CONTROLLER, BROKERS = 0, 1, 3
"""The listeners that `up --secure` opens, by their ports above the one of clients."""
LENGTH = struct.Struct(">i")
SEED = 7
HANDSHAKES_MAX = NetworkSettings().tls_handshakes_per_ip_max
BROKEN_HANDSHAKES = 100
DELAY_SECONDS = 0.1
"""The default of connection.failed.authentication.delay.ms."""
BETWEEN_NODES = [
    key for key, right in REQUIRED.items() if right.operation is AclOperation.CLUSTER_ACTION
]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(
        tmp_path_factory.mktemp("attacks") / "data",
        "socket.login.timeout.ms=3000",
        "socket.request.receive.timeout.ms=3000",
    )
    added = node.run("users", "add", "alice", "--password-file", "-", given="alice-pass\n")
    assert added.returncode == 0, added.stderr
    assert node.run("topics", "create", "work").returncode == 0
    yield node
    assert node.stop() == 0


@pytest.fixture(autouse=True)
def bystander(secure: SecureNode) -> Iterator[Bystander]:
    """Every attack runs beside a good client."""
    with Bystander(secure) as good:
        good.progress()
        yield good
        good.progress()
    assert good.errors == []


# Tools of an attacker


def address_of(secure: SecureNode, above: int = 0) -> tuple[str, int]:
    host, _, port = secure.bootstrap.rpartition(":")
    return host, int(port) + above


def connect(secure: SecureNode, above: int = 0) -> socket.socket:
    connected = socket.create_connection(
        address_of(secure, above), SECONDS_MAX, source_address=(ATTACKER, 0)
    )
    connected.settimeout(SECONDS_MAX)
    return connected


def context_of(secure: SecureNode) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=secure.security["ca"])


def connect_tls(secure: SecureNode) -> ssl.SSLSocket:
    return context_of(secure).wrap_socket(connect(secure), server_hostname="127.0.0.1")


def is_closed(connected: socket.socket) -> bool:
    """Waits until the node closes the connection, and reads nothing before."""
    try:
        return connected.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def ask(connected: socket.socket, key: ApiKey, version: int, message: Any) -> Any:
    body = encode_request(key, version, message)
    connected.sendall(request_frame(KNOWN_APIS[key], version, 1, "x", body))
    size = LENGTH.unpack(receive(connected, 4))[0]
    data = receive(connected, size)
    # The two SASL responses have a header without tagged fields here.
    return decode_response(key, version, data[4:])


def receive(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connected.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the node closed the connection")
        data += part
    return data


def metrics(secure: SecureNode) -> dict[str, float]:
    url = f"http://{secure.told['nodes'][0]['http']}/metrics"
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def refused(secure: SecureNode, reason: str) -> float:
    name = f'riverrun_connections_refused_total{{reason="{reason}"}}'
    return metrics(secure).get(name, 0.0)


# Before the login


def test_a_flood_of_connections_does_not_keep_others_out(secure: SecureNode) -> None:
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(connect(secure)) for _ in range(3 * HANDSHAKES_MAX)]
        for one in flood:
            one.setblocking(False)

        def closed() -> int:
            count = 0
            for one in flood:
                with contextlib.suppress(BlockingIOError):
                    count += is_closed(one)
            return count

        wanted = len(flood) - HANDSHAKES_MAX
        until(lambda: closed() >= wanted, seconds=SECONDS_MAX, what="refused connections")
        security = secure.security
        assert secure.produce(security["user"], security["password"], "work") == ""


def test_a_handshake_that_does_not_end_is_closed(secure: SecureNode) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(secure)) for _ in range(20)]
        for one in slow:
            one.sendall(b"\x16\x03\x01\x02")
        assert all(is_closed(one) for one in slow)


def test_broken_handshakes_end_only_their_connection(secure: SecureNode) -> None:
    """Each has another byte of a real ClientHello changed, or ends early and goes on with noise."""
    hello = ssl.MemoryBIO()
    client = context_of(secure).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    whole = hello.read()
    rng = random.Random(SEED)
    for place in rng.sample(range(len(whole)), BROKEN_HANDSHAKES):
        changed = bytes((whole[place] ^ rng.randrange(1, 256),))
        noise = rng.randbytes(rng.randrange(1, 2000))
        for data in (whole[:place] + changed + whole[place + 1 :], whole[:place] + noise):
            with connect(secure) as one, contextlib.suppress(ConnectionError):
                one.sendall(data)
                one.shutdown(socket.SHUT_WR)
                while one.recv(4096):
                    pass  # an alert, or a ServerHello if the changed byte does not matter


def test_connections_that_do_not_log_in_are_closed(secure: SecureNode) -> None:
    before = metrics(secure)["riverrun_connections"]
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect_tls(secure)) for _ in range(50)]
        assert all(is_closed(one) for one in idle)
    until(
        lambda: metrics(secure)["riverrun_connections"] <= before + 2,
        seconds=SECONDS_MAX,
        what="closed connections",
    )
    assert refused(secure, "slow_login") >= 50


def test_half_a_frame_is_not_waited_for(secure: SecureNode) -> None:
    with connect_tls(secure) as one:
        one.sendall(LENGTH.pack(1000) + b"\0\x11\0")
        assert is_closed(one)


@pytest.mark.parametrize(
    ("size", "reason"), [(2**31 - 1, "oversized"), (600_000, "oversized"), (-1, "negative_length")]
)
def test_a_large_frame_before_the_login_is_refused_without_a_buffer(
    secure: SecureNode, size: int, reason: str
) -> None:
    before = refused(secure, reason)
    with connect_tls(secure) as one:
        one.sendall(LENGTH.pack(size) + b"\0" * 1000)
        assert is_closed(one)
    assert refused(secure, reason) == before + 1
    assert metrics(secure)["riverrun_receive_buffer_bytes"] < 64 * 1024 * 1024


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.CREATE_TOPICS])
def test_nothing_but_a_login_is_served_before_it(secure: SecureNode, key: ApiKey) -> None:
    with connect_tls(secure) as one:
        api = KNOWN_APIS[key]
        one.sendall(request_frame(api, api.max_version, 1, "x", bytes(64)))
        assert is_closed(one)


# Logins


def handshake(connected: socket.socket, mechanism: str = "SCRAM-SHA-512") -> ErrorCode:
    request = SaslHandshakeRequest(mechanism=mechanism)
    code: ErrorCode = ask(connected, ApiKey.SASL_HANDSHAKE, 1, request).error_code
    return code


def authenticate(connected: socket.socket, message: bytes) -> Any:
    request = SaslAuthenticateRequest(auth_bytes=message)
    return ask(connected, ApiKey.SASL_AUTHENTICATE, 1, request)


def test_a_recorded_login_cannot_be_replayed(secure: SecureNode) -> None:
    client = ScramClient(ScramMechanism.SHA_512, "alice", "alice-pass", uuid4().hex)
    with connect_tls(secure) as one:
        handshake(one)
        first = client.first
        final = client.final(authenticate(one, first).auth_bytes)
        assert authenticate(one, final).error_code is ErrorCode.NONE
    with connect_tls(secure) as again:
        handshake(again)
        assert authenticate(again, first).error_code is ErrorCode.NONE
        refusal = authenticate(again, final)
        assert refusal.error_code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert is_closed(again)
    with connect_tls(secure) as short:
        handshake(short)
        assert authenticate(short, final).error_code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_failed_login_is_answered_after_a_delay(secure: SecureNode) -> None:
    with connect_tls(secure) as one:
        handshake(one)
        began = time.monotonic()
        assert authenticate(one, b"n,,").error_code is ErrorCode.SASL_AUTHENTICATION_FAILED
        # The clock of the event loop counts milliseconds, so a timer may fire one too early.
        assert time.monotonic() - began >= 0.9 * DELAY_SECONDS
        assert is_closed(one)


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI", "OAUTHBEARER", "ANONYMOUS", ""])
def test_a_mechanism_that_is_not_enabled_is_refused(secure: SecureNode, mechanism: str) -> None:
    with connect_tls(secure) as one:
        assert handshake(one, mechanism) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert is_closed(one)


def test_the_port_with_tls_does_not_answer_without_it(secure: SecureNode) -> None:
    request = encode_request(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
    with connect(secure) as one:
        one.sendall(request_frame(KNOWN_APIS[ApiKey.SASL_HANDSHAKE], 1, 1, "x", request))
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := one.recv(1000):
                received += part
    assert received[:1] in (b"", b"\x15"), "at most a TLS alert"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_an_old_version_of_tls_is_refused(secure: SecureNode) -> None:
    old = context_of(secure)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with connect(secure) as one, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(one, server_hostname="127.0.0.1")


@pytest.mark.parametrize("above", [CONTROLLER, BROKERS])
def test_the_listeners_between_nodes_require_a_certificate(secure: SecureNode, above: int) -> None:
    with (
        connect(secure, above) as one,
        pytest.raises((ssl.SSLError, ConnectionError)),
        context_of(secure).wrap_socket(one, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.recv(1)  # with TLS 1.3 the alert comes after the handshake
        raise ConnectionResetError("closed without an alert")


# Requests of other nodes


def empty(kind: Any) -> Any:
    """A value for a field of a request that the node must not look at."""
    if get_origin(kind) is tuple:
        return ()
    options = [one for one in get_args(kind) if one is not type(None)]
    if options:
        return None
    if hasattr(kind, "__struct_fields__"):
        return smallest(kind)
    return kind()


def smallest(kind: type[Any]) -> Any:
    wanted = {one.name: empty(one.type) for one in fields(kind) if one.required}
    return kind(**wanted)


def request_as(
    secure: SecureNode, security: ClientSecurity | None, key: ApiKey, message: Any, above: int = 0
) -> Any:
    async def send() -> Any:
        connection = await Connection.connect(
            *address_of(secure, above), client_id="x", connect_timeout_s=10, security=security
        )
        try:
            return await connection.request(
                key, message, version=KNOWN_APIS[key].max_version, timeout_s=20
            )
        finally:
            connection.close()

    return asyncio.run(send())


def login(secure: SecureNode, user: str, password: str) -> ClientSecurity | None:
    names = secure.client(user, password)
    del names["bootstrap.servers"]
    return client_security(names)


def alice(secure: SecureNode) -> ClientSecurity | None:
    return login(secure, "alice", "alice-pass")


def mallory(secure: SecureNode, folder: Path) -> ClientSecurity | None:
    """A client with a certificate of the authority that the nodes trust."""
    path = folder / "mallory.pem"
    Authority(Path(secure.security["ca"]).parent).issue(path, name="mallory")
    return certified(secure, path)


def certified(secure: SecureNode, path: Path) -> ClientSecurity | None:
    return client_security(
        {
            "security.protocol": "SSL",
            "ssl.keystore.location": str(path),
            "ssl.truststore.location": secure.security["ca"],
        }
    )


def codes_in(response: Any) -> list[ErrorCode]:
    found = [response.error_code] if hasattr(response, "error_code") else []
    for one in fields(type(response)):
        value = getattr(response, one.name)
        for item in value if isinstance(value, tuple) else ():
            if hasattr(item, "__struct_fields__"):
                found += codes_in(item)
    return found


@pytest.mark.parametrize("key", BETWEEN_NODES, ids=lambda key: key.name)
@pytest.mark.parametrize("above", [CLIENTS, CONTROLLER, BROKERS])
def test_requests_of_nodes_are_denied_to_clients(
    secure: SecureNode, key: ApiKey, above: int, tmp_path: Path
) -> None:
    """Also to a client whose certificate is of the same authority as those of the nodes."""
    message = smallest(message_class(key, "request"))
    security = alice(secure) if above == CLIENTS else mallory(secure, tmp_path)
    if key in (CONTROLLER_ROUTES if above == CONTROLLER else ROUTES):
        response = request_as(secure, security, key, message, above)
        assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes_in(response)
    else:
        with pytest.raises(ConnectionError):
            request_as(secure, security, key, message, above)


def follower_fetch(topic_id: UUID, replica: int, epoch: int) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica, replica_epoch=epoch),
        max_wait_ms=0,
        min_bytes=0,
        topics=(FetchTopic(topic_id=topic_id, partitions=(part,)),),
    )


def work_id(secure: SecureNode) -> UUID:
    admin = login(secure, secure.security["user"], secure.security["password"])
    wanted = MetadataRequest(topics=(MetadataRequestTopic(name="work", topic_id=None),))
    found: UUID = request_as(secure, admin, ApiKey.METADATA, wanted).topics[0].topic_id
    return found


def test_a_user_cannot_fetch_as_a_replica(secure: SecureNode) -> None:
    request = follower_fetch(work_id(secure), 1, 0)
    response = request_as(secure, alice(secure), ApiKey.FETCH, request)
    assert codes_in(response)[-1] is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_client_cannot_fetch_the_metadata_log(secure: SecureNode, tmp_path: Path) -> None:
    request = follower_fetch(METADATA_TOPIC_ID, 2, -1)
    response = request_as(secure, mallory(secure, tmp_path), ApiKey.FETCH, request, CONTROLLER)
    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes_in(response)
    assert not response.responses


def test_markers_of_transactions_are_denied_to_users(secure: SecureNode) -> None:
    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name="work", partition_indexes=(0,)),),
        coordinator_epoch=0,
    )
    request = WriteTxnMarkersRequest(markers=(marker,))
    response = request_as(secure, alice(secure), ApiKey.WRITE_TXN_MARKERS, request)
    assert codes_in(response) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_a_node_certificate_of_another_authority_is_refused(
    secure: SecureNode, tmp_path: Path
) -> None:
    Authority.create(tmp_path, name="evil").issue(tmp_path / "node-1.pem", name="node-1")
    forged = certified(secure, tmp_path / "node-1.pem")
    for above in (CONTROLLER, BROKERS):
        with pytest.raises(OSError):
            request_as(secure, forged, ApiKey.FETCH, follower_fetch(uuid4(), 1, 0), above)


def test_a_stolen_node_certificate_needs_the_epoch_of_the_node_it_claims_to_be(
    secure: SecureNode,
) -> None:
    """Certificates are not bound to node ids: one of node-1 may speak for node 2. But a follower
    is also checked by its registration."""
    stolen = certified(secure, Path(secure.security["ca"]).parent / "node-1.pem")
    topic = work_id(secure)
    for replica in (1, 2):
        request = follower_fetch(topic, replica, 99)
        response = request_as(secure, stolen, ApiKey.FETCH, request, BROKERS)
        assert codes_in(response)[-1] in (
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        )
        assert not any(part.records for one in response.responses for part in one.partitions)


def test_a_super_user_cannot_write_audit_events(secure: SecureNode) -> None:
    admin = login(secure, secure.security["user"], secure.security["password"])
    request = AppendAuditRequest(
        broker_id=1, incarnation_id=uuid4(), partition_index=0, batch=b"forged"
    )
    response = request_as(secure, admin, ApiKey.APPEND_AUDIT, request)
    assert response.error_code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
