"""A client that changed something through a broker sees the change in its next request there.

The controller commits a change before the other brokers know it, so a broker answers when its own
image has the change. Each test talks to one broker directly and never retries.
"""

from collections.abc import Callable
from typing import Any

import pytest

from riverrun.records.record import NewRecord, build_batch
from tests.clusters import Cluster
from tests.plain_client import PlainClient

ROUNDS = 34
"""With each of the three brokers."""


@pytest.fixture(params=[1, 2, 3], ids=lambda node: f"broker-{node}")
def node(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_new_topic_is_listed_described_written_and_read_at_once(
    cluster: Cluster, node: int, make_name: Callable[[], str]
) -> None:
    with cluster.nodes[node].client() as client:
        for _ in range(ROUNDS):
            name = make_name()
            _create(client, name, node)
            assert _partitions(client, name) == 1
            assert _setting(client, name, "retention.ms") == "1234"
            assert _end_offset(client, name) == 0
            _produce(client, name)
            assert _end_offset(client, name) == 1
            _delete(client, name)


def test_deleted_topic_is_gone_at_once(
    cluster: Cluster, node: int, make_name: Callable[[], str]
) -> None:
    with cluster.nodes[node].client() as client:
        name = make_name()
        for _ in range(ROUNDS):
            _create(client, name, node)
            _delete(client, name)
            assert _partitions(client, name) is None
            fields = {"resources": [_resource(name, configuration_keys=None)]}
            (result,) = client.request("describe_configs", 4, fields)["results"]
            assert result["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_new_partitions_and_settings_are_seen_at_once(
    cluster: Cluster, node: int, make_name: Callable[[], str]
) -> None:
    name = make_name()
    with cluster.nodes[node].client() as client:
        _create(client, name, node)
        for count in range(2, ROUNDS + 2):
            place = {"broker_ids": [node, *(other for other in (1, 2, 3) if other != node)]}
            grown = {"name": name, "count": count, "assignments": [place]}
            fields: dict[str, Any] = {"topics": [grown], "timeout": 30000}
            (result,) = client.request("create_partitions", 3, fields)["results"]
            assert result["error_code"] == "NONE"
            assert _partitions(client, name) == count
            assert _end_offset(client, name, partition=count - 1) == 0
            _produce(client, name, partition=count - 1)
            change = {"name": "retention.ms", "config_operation": 0, "value": str(5000 + count)}
            fields = {"resources": [_resource(name, configs=[change])], "validate_only": False}
            (result,) = client.request("incremental_alter_configs", 1, fields)["responses"]
            assert result["error_code"] == "NONE"
            assert _setting(client, name, "retention.ms") == str(5000 + count)
        _delete(client, name)


def _create(client: PlainClient, name: str, leader: int) -> None:
    others = [node for node in (1, 2, 3) if node != leader]
    place = {"partition_index": 0, "broker_ids": [leader, *others]}
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [place]}
    topic["configs"] = [{"name": "retention.ms", "value": "1234"}]
    made = client.request("create_topics", 7, {"topics": [topic], "timeout": 30000})
    assert made["topics"][0]["error_code"] == "NONE"


def _delete(client: PlainClient, name: str) -> None:
    fields = {"topics": [{"name": name}], "timeout": 30000}
    (deleted,) = client.request("delete_topics", 6, fields)["responses"]
    assert deleted["error_code"] == "NONE"


def _partitions(client: PlainClient, name: str) -> int | None:
    """How many partitions with a leader the broker lists."""
    fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    (topic,) = client.request("metadata", 12, fields)["topics"]
    if topic["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION":
        return None
    assert topic["error_code"] == "NONE"
    assert {row["error_code"] for row in topic["partitions"]} == {"NONE"}
    return len(topic["partitions"])


def _setting(client: PlainClient, name: str, setting: str) -> str:
    fields = {"resources": [_resource(name, configuration_keys=[setting])]}
    (result,) = client.request("describe_configs", 4, fields)["results"]
    assert result["error_code"] == "NONE"
    return str(result["configs"][0]["value"])


def _resource(name: str, **fields: object) -> dict[str, Any]:
    return {"resource_type": 2, "resource_name": name, **fields}


def _end_offset(client: PlainClient, name: str, partition: int = 0) -> int:
    wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": name, "partitions": [wanted]}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    (topic,) = client.request("list_offsets", 7, fields)["topics"]
    assert topic["partitions"][0]["error_code"] == "NONE"
    return int(topic["partitions"][0]["offset"])


def _produce(client: PlainClient, name: str, partition: int = 0) -> None:
    batch = build_batch([NewRecord(b"value", timestamp=1)])
    topics = [{"name": name, "partition_data": [{"index": partition, "records": batch}]}]
    fields = {"transactional_id": None, "acks": -1, "timeout": 30000, "topic_data": topics}
    (topic,) = client.request("produce", 9, fields)["responses"]
    assert topic["partition_responses"][0]["error_code"] == "NONE"
