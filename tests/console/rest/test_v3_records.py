"""REST v3: records that are written over HTTP and read by a real client, and lags of groups."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any

import confluent_kafka
import pytest

from tests.clusters import Cluster
from tests.compatibility.confluent import consumer, read
from tests.console.rest.caller import Caller, V3Caller
from tests.processes import until

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}


def create(v3: V3Caller, name: str, partitions: int = 1, **settings: str) -> None:
    configs = [{"name": key.replace("_", "."), "value": text} for key, text in settings.items()]
    body = {"topic_name": name, "partitions_count": partitions, "configs": configs}
    v3.call("POST", "topics", body, status=201)


def consumed(cluster: Cluster, topic: str, count: int) -> list[confluent_kafka.Message]:
    with consumer(cluster.bootstrap, f"{topic}-reader") as reading:
        reading.subscribe([topic])
        return read(reading, count)


def text(value: str) -> dict[str, str]:
    return {"type": "STRING", "data": value}


def reports(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def test_each_type_of_data_arrives_as_its_bytes(cluster: Cluster, v3: V3Caller, name: str) -> None:
    create(v3, name)
    header = base64.b64encode(b"h\xff").decode()
    first = {
        "key": text("käse"),
        "value": {"type": "JSON", "data": {"b": [1, 2.50], "a": None}},
        "headers": [{"name": "trace", "value": header}, {"name": "empty"}],
        "timestamp": "2021-02-05T19:14:42Z",
    }
    report = v3.call("POST", f"topics/{name}/records", first)
    assert report["error_code"] == 200
    assert (report["partition_id"], report["offset"]) == (0, 0)
    assert (report["cluster_id"], report["topic_name"]) == (v3.cluster_id, name)
    assert report["timestamp"] == "2021-02-05T19:14:42.000Z"
    assert report["key"] == {"type": "STRING", "size": 5}
    assert report["value"]["type"] == "JSON"
    binary = {"type": "BINARY", "data": base64.b64encode(b"\x00\x01").decode()}
    assert v3.call("POST", f"topics/{name}/records", {"value": binary})["offset"] == 1
    nothing = {"key": text("k"), "value": {"type": "BINARY", "data": None}}
    assert v3.call("POST", f"topics/{name}/records", nothing)["value"] is None

    one, two, three = consumed(cluster, name, 3)
    assert (one.key(), one.value()) == ("käse".encode(), b'{"b":[1,2.5],"a":null}')
    assert one.headers() == [("trace", b"h\xff"), ("empty", None)]
    assert one.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1612552482000)
    assert (two.key(), two.value()) == (None, b"\x00\x01")
    assert (three.key(), three.value()) == (b"k", None)


def test_a_key_goes_to_the_partition_that_clients_choose(
    cluster: Cluster, v3: V3Caller, name: str
) -> None:
    create(v3, name, partitions=3)
    keys = [f"key-{number}" for number in range(20)]
    body = "".join(json.dumps({"key": text(key)}) for key in keys)
    response = v3.send("POST", f"topics/{name}/records", content=body, headers=JSON)
    chosen = {
        key: row["partition_id"] for key, row in zip(keys, reports(response.content), strict=True)
    }
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random"}
    )
    found: dict[str, int | None] = {}

    def delivered(_: object, sent: confluent_kafka.Message) -> None:
        found[(sent.key() or b"").decode()] = sent.partition()

    for key in keys:
        producer.produce(name, key=key, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert found == chosen


def test_concatenated_records_are_answered_in_order_with_their_own_errors(
    cluster: Cluster, v3: V3Caller, name: str
) -> None:
    create(v3, name, partitions=2)
    rows: list[dict[str, Any]] = [
        {"partition_id": 1, "value": text('a}{"')},
        {"partition_id": 7, "value": text("lost")},
        {"partition_id": 1, "value": {"type": "AVRO", "data": "x"}},
        {"partition_id": 1, "value": {"type": "BINARY", "data": "?"}},
        {"partition_id": -1},
        {"partition_id": 1, "value": text("b")},
    ]
    body = " \n".join(json.dumps(row) for row in rows)
    response = v3.send("POST", f"topics/{name}/records", content=body, headers=JSON)
    assert response.status_code == 200
    found = reports(response.content)
    codes = [row["error_code"] for row in found]
    assert codes == [200, 40403, 422, 400, 400, 200]
    assert [row["offset"] for row in found if row["error_code"] == 200] == [0, 1]
    assert [message.value() for message in consumed(cluster, name, 2)] == [b'a}{"', b"b"]


class RecordStream:
    """A request with chunked transfer encoding that reads reports while it writes records."""

    def __init__(self, rest: Caller, v3: V3Caller, topic: str) -> None:
        host, port = rest.base.removeprefix("http://").split(":")
        head = (
            f"POST /v3/clusters/{v3.cluster_id}/topics/{topic}/records HTTP/1.1\r\n"
            f"Host: {host}:{port}\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        self._connection = socket.create_connection((host, int(port)), timeout=60)
        self._connection.sendall(head.encode())
        self._received = b""

    def write(self, record: dict[str, Any]) -> dict[str, Any]:
        """Send a record in two pieces, and wait for its report."""
        encoded = json.dumps(record).encode()
        for piece in (encoded[:10], encoded[10:]):
            self._connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        while b"}\n\r\n" not in self._received:
            self._receive()
        report, end, self._received = self._received.partition(b"}\n\r\n")
        found: dict[str, Any] = json.loads(report[report.index(b'{"error_code"') :] + end)
        return found

    def end(self) -> None:
        self._connection.sendall(b"0\r\n\r\n")
        while not self._received.endswith(b"0\r\n\r\n"):
            self._receive()
        self._connection.close()

    def _receive(self) -> None:
        more = self._connection.recv(65536)
        assert more, self._received
        self._received += more


def test_a_stream_is_answered_while_it_goes_on(v3: V3Caller, rest: Caller, name: str) -> None:
    create(v3, name)
    stream = RecordStream(rest, v3, name)
    offsets = [stream.write({"value": text(f"record {number}")})["offset"] for number in range(5)]
    stream.end()
    assert offsets == list(range(5))


def test_a_stream_outlives_the_leader_and_writes_each_record_once(
    cluster: Cluster, v3: V3Caller, rest: Caller, name: str
) -> None:
    rows = [{"partition_id": 0, "broker_ids": [2, 3, 1]}]
    v3.call("POST", "topics", {"topic_name": name, "replicas_assignments": rows}, status=201)
    assert cluster.leader(name) == 2
    stream = RecordStream(rest, v3, name)
    sent = [f"record {number}" for number in range(30)]
    written = []
    for number, value in enumerate(sent):
        if number == 10:
            cluster.nodes[2].kill()
        report = stream.write({"value": text(value)})
        if report["error_code"] == 200:
            written.append(value.encode())
    stream.end()
    cluster.nodes[2].restart()
    cluster.wait_healthy()
    assert len(written) >= 20
    found = [message.value() for message in consumed(cluster, name, len(written))]
    assert found == written
    v3.call("DELETE", f"topics/{name}", status=204)


def test_an_incomplete_stream_ends_with_an_error(v3: V3Caller, name: str) -> None:
    create(v3, name)
    body = json.dumps({"value": text("whole")}) + '{"value": {"ty'
    response = v3.send("POST", f"topics/{name}/records", content=body, headers=JSON)
    assert [row["error_code"] for row in reports(response.content)] == [200, 400]


def test_many_records_are_written_once_and_in_order(
    cluster: Cluster, v3: V3Caller, name: str
) -> None:
    create(v3, name, max_message_bytes="20000")
    values = [f"{number:05}" + "x" * 200 for number in range(3000)]
    body = "\n".join(json.dumps({"value": text(value)}) for value in values)
    response = v3.send("POST", f"topics/{name}/records", content=body, headers=JSON)
    found = reports(response.content)
    assert [row["offset"] for row in found] == list(range(3000))
    assert [message.value() for message in consumed(cluster, name, 3000)] == [
        value.encode() for value in values
    ]
    large = {"value": text("y" * 30_000)}
    assert v3.call("POST", f"topics/{name}/records", large)["error_code"] == 413


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", JSON, 400),
        (b"{'key': 1}", JSON, 400),
        (b"[1]", JSON, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b'{"value": 5}', JSON, 400),
    ],
)
def test_bad_requests_are_refused(
    v3: V3Caller, name: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    if v3.send("GET", f"topics/{name}").status_code == 404:
        create(v3, name)
    response = v3.send("POST", f"topics/{name}/records", content=content, headers=headers)
    assert (response.status_code, response.json()["error_code"]) == (status, status)


def test_an_unknown_topic_is_not_created_by_a_record(v3: V3Caller) -> None:
    assert v3.error("POST", "topics/nosuch/records", {}, status=404) == 40403
    batch = {"entries": [{"id": "1"}]}
    assert v3.error("POST", "topics/nosuch/records:batch", batch, status=404) == 40403
    assert v3.error("GET", "topics/nosuch", status=404) == 40403


def test_a_batch_reports_successes_and_failures(cluster: Cluster, v3: V3Caller, name: str) -> None:
    create(v3, name)
    entries = [
        {"id": "good", "key": text("k"), "value": text("v")},
        {"id": "bad", "value": {"type": "BINARY", "data": "?"}},
        {"id": "lost", "partition_id": 5},
    ]
    found = v3.call("POST", f"topics/{name}/records:batch", {"entries": entries}, status=207)
    (success,) = found["successes"]
    assert (success["id"], success["offset"], success["error_code"]) == ("good", 0, 200)
    assert {row["id"]: row["error_code"] for row in found["failures"]} == {
        "bad": 400,
        "lost": 40403,
    }
    (message,) = consumed(cluster, name, 1)
    assert (message.key(), message.value()) == (b"k", b"v")
    same = {"entries": [entries[0], entries[0]]}
    assert v3.error("POST", f"topics/{name}/records:batch", same, status=422) == 422
    assert v3.error("POST", f"topics/{name}/records:batch", {"entries": []}, status=400) == 400


def test_groups_have_consumers_assignments_and_lags(
    cluster: Cluster, v3: V3Caller, name: str
) -> None:
    create(v3, name, partitions=2)
    for partition, count in ((0, 3), (1, 1)):
        body = "".join(json.dumps({"partition_id": partition}) for _ in range(count))
        v3.send("POST", f"topics/{name}/records", content=body, headers=JSON)
    settings = {"enable_auto_commit": False, "client_id": "app-1", "group_instance_id": "one"}
    with consumer(cluster.bootstrap, name, **settings) as reading:
        reading.subscribe([name])
        read(reading, 4)
        place = confluent_kafka.TopicPartition
        reading.commit(offsets=[place(name, 0, 1), place(name, 1, 1)], asynchronous=False)
        group = v3.get(f"consumer-groups/{name}")
        assert (group["kind"], group["state"], group["is_simple"]) == (
            "KafkaConsumerGroup",
            "STABLE",
            False,
        )
        assert group["partition_assignor"] == "range"
        listed = [row for row in v3.get("consumer-groups")["data"] if row == group]
        assert len(listed) == 1
        (member,) = v3.get(f"consumer-groups/{name}/consumers")["data"]
        assert (member["client_id"], member["instance_id"]) == ("app-1", "one")
        path = f"consumer-groups/{name}/consumers/{member['consumer_id']}"
        assert v3.get(path) == member
        assigned = v3.get(f"{path}/assignments")["data"]
        assert [(row["topic_name"], row["partition_id"]) for row in assigned] == [
            (name, 0),
            (name, 1),
        ]
        assert v3.get(f"{path}/assignments/{name}/partitions/1") == assigned[1]
        lags = v3.get(f"consumer-groups/{name}/lags")["data"]
        assert [(row["current_offset"], row["log_end_offset"], row["lag"]) for row in lags] == [
            (1, 3, 2),
            (1, 1, 0),
        ]
        assert v3.get(f"consumer-groups/{name}/lags/{name}/partitions/0") == lags[0]
        summary = v3.get(f"consumer-groups/{name}/lag-summary")
        assert (summary["max_lag"], summary["total_lag"]) == (2, 2)
        assert summary["max_lag_consumer_id"] == member["consumer_id"]
        assert v3.error("GET", f"{path}/assignments/{name}/partitions/9", status=404) == 404
    assert v3.error("GET", "consumer-groups/nosuch", status=404) == 404
    assert v3.error("GET", f"consumer-groups/{name}/consumers/nosuch", status=404) == 404
    assert v3.error("GET", f"consumer-groups/{name}/lags/nosuch/partitions/0", status=404) == 404


def test_a_group_without_members_keeps_its_lags(cluster: Cluster, v3: V3Caller, name: str) -> None:
    create(v3, name)
    v3.call("POST", f"topics/{name}/records", {"value": text("x")})
    with consumer(cluster.bootstrap, name, enable_auto_commit=False) as reading:
        reading.subscribe([name])
        read(reading, 1)
        at = confluent_kafka.TopicPartition(name, 0, 0)
        reading.commit(offsets=[at], asynchronous=False)
    until(lambda: v3.get(f"consumer-groups/{name}")["state"] == "EMPTY", seconds=30, what="it left")
    (lag,) = v3.get(f"consumer-groups/{name}/lags")["data"]
    assert (lag["lag"], lag["consumer_id"], lag["client_id"]) == (1, "", "")
