"""Apache Kafka's own tool reads our records of ``__consumer_offsets``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.peers import find_java, find_kafka, need
from tests.processes import serve

SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff"


def dump_of(folder: Path, conversation: Callable[[Any], None]) -> list[tuple[Any, Any]]:
    """Keys and values that kafka-dump-log finds after a conversation with a node."""
    libraries, java = need(find_kafka), need(find_java)
    settings = {"offsets.topic.num.partitions": "1"}
    with serve(folder / "node", settings, peer="riverrun") as server:
        with server.client() as client:
            conversation(client)
        log = server.data / "__consumer_offsets-0" / "00000000000000000000.log"
        written = folder / "00000000000000000000.log"
        written.write_bytes(log.read_bytes())
    command = [java, "-Xmx128M", "-cp", f"{libraries}/*"]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder"]
    command += ["--deep-iteration", "--files", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [pair(line) for line in done.stdout.splitlines() if " payload: " in line]


@pytest.mark.peer
def test_kafka_dump_log_reads_groups_and_offsets(tmp_path: Path) -> None:
    found = dump_of(tmp_path, speak)
    kinds = [(key["type"], key["data"]["group"], payload) for key, payload in found]
    assert [(kind, group) for kind, group, _ in kinds] == [
        ("2", "readers"),
        ("2", "readers"),
        ("1", "readers"),
        ("1", "loner"),
        ("2", "readers"),
        ("1", "loner"),
    ]
    stable = kinds[1][2]["data"]
    assert (stable["protocolType"], stable["generation"], stable["protocol"]) == (
        "consumer",
        1,
        "range",
    )
    assert stable["members"][0]["subscription"]["topics"] == ["orders"]
    commit = kinds[2][2]
    assert commit["version"] == "4"
    assert (commit["data"]["offset"], commit["data"]["metadata"]) == (5, "half way")
    assert kinds[3][2]["version"] == "1"
    assert kinds[4][2]["data"]["members"] == []
    assert kinds[5][2] is None


@pytest.mark.peer
def test_kafka_dump_log_reads_groups_of_the_consumer_protocol(tmp_path: Path) -> None:
    found = dump_of(tmp_path, speak_consumer)
    kinds = [key["type"] for key, _ in found]
    assert kinds == ["5", "16", "3", "7", "6", "8", "8", "7", "5", "16", "3", "6"]
    values = {kind: payload["data"] for kind, (_, payload) in zip(kinds[:6], found, strict=False)}
    assert values["5"]["subscribedTopicRegex"] == "ord.*"
    assert values["16"]["topics"] == ["orders"]
    assert (values["3"]["epoch"], values["6"]["assignmentEpoch"]) == (2, 2)
    assert values["8"]["memberEpoch"] == 2
    assert values["8"]["assignedPartitions"][0]["partitions"] == [0]
    assert values["8"]["assignedPartitions"][0]["assignmentEpochs"] == [2]
    assert values["7"]["topicPartitions"][0]["partitions"] == [0]
    assert [payload is None for _, payload in found[6:]] == [True] * 4 + [False] * 2


def speak_consumer(client: Any) -> None:
    topics = [{"name": "orders", "num_partitions": 1, "replication_factor": 1}]
    client.request("create_topics", 7, {"topics": topics, "timeout": 5000})
    client.request("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["readers"]})
    mine = {"group_id": "readers", "member_id": "m1"}
    joining = {
        **mine,
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": [],
        "subscribed_topic_regex": "ord.*",
        "topic_partitions": [],
    }
    assert client.request("consumer_group_heartbeat", 1, joining)["error_code"] == "NONE"
    leaving = {**mine, "member_epoch": -1, "topic_partitions": None}
    assert client.request("consumer_group_heartbeat", 1, leaving)["error_code"] == "NONE"


def pair(line: str) -> tuple[Any, Any]:
    """The key and payload of one line of the tool's output."""
    key, payload = line.split(" key: ", 1)[1].split(" payload: ", 1)
    return json.loads(key), None if payload == "<DELETE>" else json.loads(payload)


def speak(client: Any) -> None:
    topics = [{"name": "orders", "num_partitions": 1, "replication_factor": 1}]
    client.request("create_topics", 7, {"topics": topics, "timeout": 5000})
    client.request("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["readers"]})
    join = {
        "group_id": "readers",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    member = client.request("join_group", 3, join)["member_id"]
    mine = {"group_id": "readers", "generation_id": 1, "member_id": member}
    part = [{"member_id": member, "assignment": b"all"}]
    client.request("sync_group", 3, {**mine, "assignments": part})
    offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "half way"}
    committed = [{"name": "orders", "partitions": [offset]}]
    as_member = {"generation_id_or_member_epoch": 1, "member_id": member, "topics": committed}
    client.request("offset_commit", 8, {"group_id": "readers", **as_member})
    alone = {"group_id": "loner", "generation_id_or_member_epoch": -1, "topics": committed}
    client.request("offset_commit", 4, {**alone, "retention_time": 60_000})
    client.request("leave_group", 2, mine)
    gone = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    client.request("offset_delete", 0, {"group_id": "loner", "topics": gone})
