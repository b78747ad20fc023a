"""Bad input from the network: it costs its sender the connection, and nobody else anything.

Hypothesis bends real frames of every API; a client beside them works on undisturbed.
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
from tests.differential.scripts.asking import fetch_fields, produce_fields
from tests.differential.scripts.wire import SERVED, simple_request
from tests.plain_client import API_KEYS, ConnectionClosed, request_frame
from tests.processes import Server, serve

pytestmark = pytest.mark.chaos
EXAMPLES = int(os.environ.get("RIVERRUN_FUZZ_EXAMPLES", "250"))
ANSWER_SECONDS_MAX = 0.05
GROWTH_BYTES_MAX = 120 << 20
ours = pytest.mark.skipif(
    os.environ.get("PEER") == "kafka", reason="Apache Kafka takes the memory that is declared"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("frames") / "node") as running:
        running.wait_for_coordinator()
        yield running


@pytest.fixture(scope="module")
def frames(server: Server) -> list[bytes]:
    """A good frame of each API in its oldest and newest version."""
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
    """A client on a connection of its own that must never notice anything."""

    def __init__(self, script: Script, topic: tuple[str, str]) -> None:
        self.script = script
        self.topic = topic
        self.count = 0

    def looks(self) -> None:
        fields = produce_fields([(self.topic, [(0, batch([b"%d" % self.count]))])])
        answer = self.script.quietly("produce", fields)
        row = answer["responses"][0]["partition_responses"][0]
        assert (row["error_code"], row["base_offset"]) == ("NONE", self.count), row
        self.count += 1
        row = {"partition": 0, "fetch_offset": self.count - 1}
        answer = self.script.quietly("fetch", fetch_fields([(self.topic, [row])]))
        assert answer["responses"][0]["partitions"][0]["high_watermark"] == self.count


def bent(data: st.DataObject, frame: bytes) -> bytes:
    """A frame that was good, with bytes changed, cut, doubled or inserted."""
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
    """Sends bytes and waits a moment for whatever the server makes of them."""
    with socket.create_connection(server.address, 5) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(data)
            connection.recv(65536)


def test_bent_frames_hurt_nobody(server: Server, frames: list[bytes], witness: Witness) -> None:
    process = psutil.Process(server.pid)
    before = process.memory_info().rss

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.data())
    def bend(data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(frames))
        send(server, bent(data, frame))
        witness.looks()

    bend()
    assert server.is_running()
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    assert "Traceback" not in server.logs(), server.logs()


def test_noise_hurts_nobody(server: Server, witness: Witness) -> None:
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
    def shout(data: bytes) -> None:
        send(server, data)
        witness.looks()

    shout()
    assert server.is_running()


@ours
def test_declared_lengths_cost_no_memory(server: Server, witness: Witness) -> None:
    """Buffers grow with bytes received, never with a length that is only declared."""
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    declared = struct.pack(">i", 90 << 20) + b"\0\3\0\x09" + bytes(60)
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            connection = stack.enter_context(socket.create_connection(server.address, 5))
            connection.sendall(declared)
        witness.looks()
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX


@ours
def test_huge_arrays_cost_no_memory(server: Server, witness: Witness) -> None:
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
    witness.looks()
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX


def test_a_slow_sender_is_served_and_disturbs_nobody(server: Server, witness: Witness) -> None:
    """One byte at a time: the frame is good, so it is answered, and others do not wait for it."""
    frame = request_frame("api_versions", 0, {})
    with socket.create_connection(server.address, 5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame:
            connection.sendall(bytes([byte]))
            witness.looks()
        assert connection.recv(4)


@ours
def test_a_reader_that_never_reads_is_held_back(server: Server, witness: Witness) -> None:
    """Answers that nobody takes must not pile up in memory."""
    process = psutil.Process(server.pid)
    script = Script(server.address, "deaf", "newest")
    topic = ("deaf", script.make_topic("deaf"))
    for _ in range(8):
        put = produce_fields([(topic, [(0, batch([os.urandom(900_000)]))])])
        script.quietly("produce", put)
    before = process.memory_info().rss
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 8 << 20}
    fields = fetch_fields([(topic, [row])], max_bytes=8 << 20)
    asked = request_frame("fetch", 18, fields)
    with socket.create_connection(server.address, 5) as connection:
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):  # 1.4 GB, were it all answered
                connection.sendall(asked)
        witness.looks()
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    script.close()


def test_garbage_of_a_member_does_not_hang_its_group(server: Server) -> None:
    """A subscription that nobody can read is still only the member's own affair."""
    if server.peer == "kafka":
        pytest.skip("Apache Kafka never answers such a join")
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


def test_refused_frames_are_counted(server: Server) -> None:
    """One counter tells an operator that somebody sends nonsense."""
    if server.peer == "kafka":
        pytest.skip("Apache Kafka has no such page")
    before = _refused(server)
    send(server, _framed(struct.pack(">hhi", 999, 0, 1)))
    with server.client(timeout_seconds=5) as client:
        client.send_raw(_framed(b"\0"))
        with pytest.raises(ConnectionClosed):
            client.receive_frame()
    assert _refused(server) >= before + 2


def _refused(server: Any) -> float:
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=5) as page:
        text = page.read().decode()
    rows = [
        line for line in text.splitlines() if line.startswith("riverrun_") and "refused" in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in rows)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
