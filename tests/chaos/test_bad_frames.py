"""Invalid input closes the connection of its sender and does not affect other clients.

Hypothesis mutates valid frames of every API while another client keeps working.
"""

import contextlib
import os
import socket
import struct
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.differential.batches import batch
from tests.differential.script import Script, versions
from tests.differential.scripts.requests import fetch_fields, produce_fields
from tests.differential.scripts.wire import SERVED, simple_request
from tests.plain_client import API_KEYS, ConnectionClosed, request_frame
from tests.processes import Server, serve

pytestmark = pytest.mark.chaos
EXAMPLES = int(os.environ.get("RIVERRUN_FUZZ_EXAMPLES", "250"))
RESPONSE_SECONDS_MAX = 0.05
GROWTH_BYTES_MAX = 120 << 20
ours = pytest.mark.skipif(
    os.environ.get("PEER") == "kafka", reason="Apache Kafka allocates declared lengths"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("frames") / "node") as running:
        running.wait_for_coordinator()
        yield running


@pytest.fixture(scope="module")
def frames(server: Server) -> list[bytes]:
    """A valid frame of each API in its oldest and newest version."""
    script = Script(server.address, "frames", "newest")
    found = []
    for api in SERVED:
        for version in {versions(api)[0], versions(api)[-1]}:
            fields, _ = simple_request(script, api, version)
            found.append(request_frame(api, version, fields))
    script.close()
    return found


@pytest.fixture(scope="module")
def witness(server: Server) -> Iterator["Witness"]:
    script = Script(server.address, "witness", "newest")
    seen = Witness(script, ("witness", script.make_topic("witness")))
    yield seen
    script.close()


class Witness:
    """A client on another connection that must not be affected."""

    def __init__(self, script: Script, topic: tuple[str, str]) -> None:
        self.script = script
        self.topic = topic
        self.count = 0

    def check(self) -> None:
        fields = produce_fields([(self.topic, [(0, batch([b"%d" % self.count]))])])
        response = self.script.quietly("produce", fields)
        row = response["responses"][0]["partition_responses"][0]
        assert (row["error_code"], row["base_offset"]) == ("NONE", self.count), row
        self.count += 1
        row = {"partition": 0, "fetch_offset": self.count - 1}
        response = self.script.quietly("fetch", fetch_fields([(self.topic, [row])]))
        assert response["responses"][0]["partitions"][0]["high_watermark"] == self.count


def mutated(data: st.DataObject, frame: bytes) -> bytes:
    """A valid frame with bytes changed, removed, duplicated or inserted."""
    body = bytearray(frame[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["change", "cut", "insert", "number", "double"])):
            case "change" if body:
                body[at] = data.draw(st.integers(0, 255))
            case "cut":
                del body[at:]
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=20))
            case "number":
                number = data.draw(st.sampled_from([-1, -2, 0, 1, 1 << 20, (1 << 31) - 1]))
                body[at : at + 4] = struct.pack(">i", number)
            case "double":
                body += body[at : at + 200]
    lengths = [len(body)] * 8 + [len(body) + 5, max(len(body) - 5, 0), -1, 0, (1 << 31) - 1]
    return struct.pack(">i", data.draw(st.sampled_from(lengths))) + bytes(body)


def send(server: Server, data: bytes) -> None:
    """Send bytes and wait shortly for a response."""
    with socket.create_connection(server.address, 5) as connection:
        connection.settimeout(RESPONSE_SECONDS_MAX)
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(data)
            connection.recv(65536)


def test_malformed_frames_do_not_affect_other_clients(
    server: Server, frames: list[bytes], witness: Witness
) -> None:
    process = psutil.Process(server.pid)
    before = process.memory_info().rss

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.data())
    def send_mutated(data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(frames))
        send(server, mutated(data, frame))
        witness.check()

    send_mutated()
    assert server.is_running()
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    assert "Traceback" not in server.logs(), server.logs()


def test_random_bytes_do_not_affect_other_clients(server: Server, witness: Witness) -> None:
    @settings(max_examples=EXAMPLES // 3, deadline=None, database=None)
    @given(
        st.one_of(
            st.binary(min_size=1, max_size=300),
            st.builds(
                lambda key, version, body: _framed(struct.pack(">hhi", key, version, 1) + body),
                st.integers(-3, 100),
                st.integers(-2, 20),
                st.binary(max_size=200),
            ),
        )
    )
    def send_noise(data: bytes) -> None:
        send(server, data)
        witness.check()

    send_noise()
    assert server.is_running()


@ours
def test_declared_frame_lengths_allocate_no_memory(server: Server, witness: Witness) -> None:
    """Buffers grow with received bytes, not with declared lengths."""
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    declared = struct.pack(">i", 90 << 20) + b"\0\3\0\x09" + bytes(60)
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            connection = stack.enter_context(socket.create_connection(server.address, 5))
            connection.sendall(declared)
        witness.check()
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX


@ours
def test_declared_array_lengths_allocate_no_memory(server: Server, witness: Witness) -> None:
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    huge = struct.pack(">i", (1 << 31) - 1)
    for api in SERVED:
        key = API_KEYS[api]
        for version in (versions(api)[0], versions(api)[-1]):
            for body in (huge * 6, b"\xff\xff\xff\xff\x07" * 6, b"\0" * 12 + huge * 3):
                head = struct.pack(">hhih", key, version, 1, 1) + b"x"
                send(server, _framed(head + body))
                send(server, _framed(head + b"\0" + body))
    witness.check()
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX


def test_slow_sender_is_served_and_does_not_block_others(server: Server, witness: Witness) -> None:
    """A valid frame sent byte by byte gets a response, and other clients do not wait for it."""
    frame = request_frame("api_versions", 0, {})
    with socket.create_connection(server.address, 5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame:
            connection.sendall(bytes([byte]))
            witness.check()
        assert connection.recv(4)


@ours
def test_client_that_never_reads_is_throttled(server: Server, witness: Witness) -> None:
    """Responses that the client does not read must not fill the memory."""
    process = psutil.Process(server.pid)
    script = Script(server.address, "deaf", "newest")
    topic = ("deaf", script.make_topic("deaf"))
    for _ in range(8):
        put = produce_fields([(topic, [(0, batch([os.urandom(900_000)]))])])
        script.quietly("produce", put)
    before = process.memory_info().rss
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 8 << 20}
    fields = fetch_fields([(topic, [row])], max_bytes=8 << 20)
    request = request_frame("fetch", 18, fields)
    with socket.create_connection(server.address, 5) as connection:
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):  # the responses would be 1.4 GB
                connection.sendall(request)
        witness.check()
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    script.close()


def test_unreadable_member_metadata_does_not_block_the_group(server: Server) -> None:
    """A member with an unreadable subscription can join."""
    if server.peer == "kafka":
        pytest.skip("Apache Kafka never responds to such a join")
    script = Script(server.address, "garbage", "newest")
    fields: dict[str, Any] = {
        "group_id": "garbage",
        "session_timeout": 10000,
        "rebalance_timeout": 10000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"metadata of range"}],
    }
    first = script.quietly("join_group", fields, version=3)
    assert first["error_code"] == "NONE", first
    assert script.quietly("describe_groups", {"groups": ["garbage"]})["groups"][0]["error_code"]
    script.close()


def test_rejected_frames_are_counted(server: Server) -> None:
    """A metric counts rejected frames."""
    if server.peer == "kafka":
        pytest.skip("Apache Kafka has no metrics page")
    before = _rejected(server)
    send(server, _framed(struct.pack(">hhi", 999, 0, 1)))
    with server.client(timeout_seconds=5) as client:
        client.send_raw(_framed(b"\0"))
        with pytest.raises(ConnectionClosed):
            client.receive_frame()
    assert _rejected(server) >= before + 2


def _rejected(server: Any) -> float:
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=5) as page:
        text = page.read().decode()
    rows = [
        line for line in text.splitlines() if line.startswith("riverrun_") and "refused" in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in rows)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
