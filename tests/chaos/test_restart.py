"""A restart keeps records, groups, settings, ids and producer states."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.differential.batches import Row, batch, read_batches
from tests.differential.script import Script
from tests.differential.scripts.requests import (
    commit_fields,
    fetch_fields,
    offset_fetch_fields,
    produce_fields,
)
from tests.processes import Server, serve, until

pytestmark = pytest.mark.chaos
SEGMENT = {"segment.bytes": "1048576"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path / "node") as running:
        running.wait_for_coordinator()
        yield running


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_restart_keeps_all_state(how: signal.Signals, server: Server) -> None:
    script = Script(server.address, "restart", "newest")
    topic = ("kept", script.make_topic("kept", partitions=2, configs=SEGMENT))
    script.make_topic("settled", configs={"retention.ms": "77000"})
    cut = ("cut", script.make_topic("cut"))
    given = _producer_id(script)
    for sequence in range(40):  # several segments
        records = _numbered(given, sequence)
        assert _produced(script, topic, records) == ("NONE", sequence)
    for _ in range(3):
        _produced(script, cut, batch([b"x"]))
    rows = [{"name": "cut", "partitions": [{"partition_index": 0, "offset": 2}]}]
    script.quietly("delete_records", {"topics": rows, "timeout": 10000})
    script.quietly("offset_commit", commit_fields("group", [(topic, 0, 17, "words")]))
    gone = script.make_topic("gone")
    script.quietly(
        "delete_topics", {"topics": [{"name": None, "topic_id": gone}], "timeout": 10000}
    )
    script.wait_without_topic("gone")
    before = script.quietly("metadata", {"topics": None})
    script.close()

    server.kill(how)
    server.wait_gone()
    server.restart()
    server.wait_for_coordinator()

    script = Script(server.address, "restart", "newest")
    after = script.quietly("metadata", {"topics": None})
    assert after["cluster_id"] == before["cluster_id"]
    assert _ids(after) == _ids(before)
    assert [row["offsets"] for row in _everything(script, topic)] == [
        f"{number}..{number}" for number in range(40)
    ]
    if server.peer != "kafka" or how != signal.SIGKILL:  # Kafka checkpoints it periodically
        assert _offset(script, "cut", -2) == 2
    assert _offset(script, "cut", -1) == 3
    found = script.quietly("offset_fetch", offset_fetch_fields([("group", [(topic, [0])])]))
    row = found["groups"][0]["topics"][0]["partitions"][0]
    assert (row["committed_offset"], row["metadata"]) == (17, "words")
    described = script.quietly("describe_configs", _resource("settled", "retention.ms"))
    assert described["results"][0]["configs"][0]["value"] == "77000"
    # Producer state survives too: a retry is a duplicate, and a gap is rejected.
    again = _numbered(given, 39)
    assert _produced(script, topic, again) == ("NONE", 39)
    gap = _numbered(given, 45)
    assert _produced(script, topic, gap)[0] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert _produced(script, topic, _numbered(given, 40)) == ("NONE", 40)
    assert _producer_id(script) > given, "a producer id was assigned twice"
    script.close()


def test_sigterm_leaves_the_clean_shutdown_marker(server: Server) -> None:
    if server.peer == "kafka":
        pytest.skip("the exit code of a JVM after SIGTERM differs")
    with server.client(timeout_seconds=5) as client:
        client.request("metadata", 12, {"topics": []})
        server.kill(signal.SIGTERM)
        server.wait_gone(5)
    assert list(server.data.glob("**/.kafka_cleanshutdown")), "there is no clean shutdown marker"
    assert "Traceback" not in server.logs()


def test_records_survive_many_restarts(server: Server) -> None:
    script = Script(server.address, "restart", "newest")
    topic = ("again", script.make_topic("again"))
    script.close()
    for number in range(4):
        script = Script(server.address, "restart", "newest")
        script.wait_for_topic("again")
        assert _produced(script, topic, batch([b"%d" % number])) == ("NONE", number)
        script.close()
        server.kill(signal.SIGTERM if number % 2 else signal.SIGKILL)
        server.wait_gone()
        server.restart()
    script = Script(server.address, "restart", "newest")
    script.wait_for_topic("again")
    assert len(_everything(script, topic)) == 4
    script.close()


def _producer_id(script: Script) -> int:
    """A new producer id; Apache Kafka has none right after its start."""

    def ask() -> list[int] | None:
        response = script.quietly("init_producer_id", {"transactional_id": None})
        return [response["producer_id"]] if response["error_code"] == "NONE" else None

    return int(until(ask, seconds=20, what="a producer id")[0])


def _numbered(producer_id: int, sequence: int) -> bytes:
    value = b"%d" % sequence * 20000
    row = Row(value, timestamp=round(time.time() * 1000))  # Kafka expires producers of old records
    return batch([row], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def _produced(script: Script, topic: tuple[str, str], records: bytes) -> tuple[str, int]:
    response = script.quietly("produce", produce_fields([(topic, [(0, records)])]))
    row = response["responses"][0]["partition_responses"][0]
    return row["error_code"], row["base_offset"]


def _everything(script: Script, topic: tuple[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    offset = 0
    while True:
        row = {"partition": 0, "fetch_offset": offset}
        response = script.quietly("fetch", fetch_fields([(topic, [row])], max_bytes=300000))
        partition = response["responses"][0]["partitions"][0]
        assert partition["error_code"] == "NONE", partition
        batches = read_batches(partition["records"] or b"")
        if not batches:
            return found
        found += batches
        offset = int(batches[-1]["offsets"].split("..")[1]) + 1


def _offset(script: Script, name: str, timestamp: int) -> int:
    rows = [{"partition_index": 0, "timestamp": timestamp}]
    fields = {"replica_id": -1, "topics": [{"name": name, "partitions": rows}]}
    response = script.quietly("list_offsets", fields)
    return int(response["topics"][0]["partitions"][0]["offset"])


def _ids(metadata: dict[str, Any]) -> dict[str, str]:
    return {topic["name"]: topic["topic_id"] for topic in metadata["topics"]}


def _resource(name: str, key: str) -> dict[str, Any]:
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": [key]}
    return {"resources": [resource]}
