"""Groups by the REST API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clusters import Cluster
from tests.console.rest.caller import Caller, run_command
from tests.processes import until

pytestmark = pytest.mark.slow

RECORDS = 10
COMMITTED = 4


def fill(rest: Caller, cluster: Cluster, topic: str) -> None:
    rest.call("POST", "topics", {"name": topic, "partitions": 2})
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, f"value {number}".encode(), partition=0)
    assert producer.flush(30) == 0


def commit(cluster: Cluster, group: str, topic: str, offset: int, metadata: str = "") -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    position = TopicPartition(topic, 0, offset, metadata=metadata)
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


@pytest.fixture
def group(rest: Caller, cluster: Cluster, name: str) -> str:
    """A group with a slash in its name, which has read a part of a topic."""
    fill(rest, cluster, name)
    commit(cluster, f"{name}/1", name, COMMITTED, "by a test")
    return f"{name}/1"


def path_of(group: str, rest: str = "") -> str:
    return f"groups/{quote(group, safe='')}{rest}"


@pytest.fixture
def member(cluster: Cluster, group: str, name: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": "reader"}
    )
    consumer.subscribe([name])
    until(
        lambda: consumer.poll(0.1) is None and consumer.assignment(),
        seconds=60,
        what="the consumer has partitions",
    )
    yield consumer
    consumer.close()


def test_groups_are_listed_with_their_lag(rest: Caller, group: str, name: str) -> None:
    page = rest.get(f"groups?q={name}")
    (row,) = page["items"]
    assert page["total"] == 1
    assert (row["group"], row["state"], row["members"]) == (group, "Empty", 0)
    assert (row["topics"], row["lag"], row["type"]) == (1, RECORDS - COMMITTED, "classic")
    assert row["coordinator"] in (1, 2, 3)


def test_groups_are_sorted_by_lag(rest: Caller, cluster: Cluster, group: str, name: str) -> None:
    commit(cluster, f"{name}/2", name, RECORDS - 1)

    def found(order: str) -> list[str]:
        page = rest.get(f"groups?q={name}&sort=lag&order={order}")
        return [row["group"] for row in page["items"]]

    until(lambda: len(found("asc")) == 2, seconds=30, what="both groups are listed")
    assert found("desc") == [group, f"{name}/2"]
    assert rest.problem("GET", "groups?sort=colour")[0] == 400


def test_a_group_shows_its_positions_and_how_old_the_next_record_is(
    rest: Caller, group: str, name: str
) -> None:
    found = rest.get(path_of(group))
    assert (found["group"], found["state"], found["members"]) == (group, "Empty", [])
    (row,) = found["partitions"]
    assert (row["topic"], row["partition"]) == (name, 0)
    assert row["metadata"].rstrip("\0") == "by a test"  # librdkafka's binding sends the NUL
    assert (row["committed"], row["end"], row["lag"]) == (COMMITTED, RECORDS, RECORDS - COMMITTED)
    assert 0 <= row["lag_seconds"] < 120
    assert found["lag"] == row["lag"] and found["lag_seconds"] == row["lag_seconds"]
    (listed,) = rest.get(f"topics/{name}/groups")["items"]
    assert (listed["group"], listed["lag"]) == (group, RECORDS - COMMITTED)


def test_an_unknown_group_is_a_404(rest: Caller, name: str) -> None:
    assert rest.problem("GET", path_of(name))[:2] == (404, "not_found")
    assert rest.problem("DELETE", path_of(name))[0] == 404
    assert rest.problem("DELETE", path_of(name, "/offsets?topic=a"))[0] == 404
    assert rest.problem("DELETE", path_of(name, "/offsets"))[0] == 400


def test_members_show_their_partitions_and_protect_the_offsets(
    rest: Caller, group: str, name: str, member: Consumer
) -> None:
    found = rest.get(path_of(group))
    (one,) = found["members"]
    assert (one["client_id"], one["host"]) == ("reader", "127.0.0.1")
    assert one["partitions"] == [{"topic": name, "partition": index} for index in (0, 1)]
    assert found["state"] == "Stable" and found["protocol"]
    body = {"to": "earliest"}
    assert rest.problem("POST", path_of(group, "/reset"), body)[:2] == (409, "conflict")
    assert rest.call("POST", path_of(group, "/reset"), {**body, "dry_run": True})["changes"]
    assert rest.problem("DELETE", path_of(group))[:2] == (409, "conflict")
    assert rest.problem("DELETE", path_of(group, f"/offsets?topic={name}"))[0] == 409


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, RECORDS),
        ({"to": "offset", "value": 7}, 7),
        ({"to": "by", "value": -1}, COMMITTED - 1),
        ({"to": "by", "value": 100}, RECORDS),
        ({"to": "time", "value": 1}, 0),
    ],
)
def test_a_group_is_moved(
    rest: Caller, cluster: Cluster, name: str, body: dict[str, Any], expected: int
) -> None:
    topic = f"{name}-{body['to']}-{body.get('value', 0)}"
    fill(rest, cluster, topic)
    commit(cluster, topic, topic, COMMITTED)
    plan = rest.call("POST", path_of(topic, "/reset"), {**body, "dry_run": True})
    change = {"topic": topic, "partition": 0, "from": COMMITTED, "to": expected}
    assert plan["changes"] == [{**change, "lag": RECORDS - expected}]
    assert rest.get(path_of(topic))["partitions"][0]["committed"] == COMMITTED
    rest.call("POST", path_of(topic, "/reset"), body)
    assert rest.get(path_of(topic))["partitions"][0]["committed"] == expected


def test_the_command_of_a_reset_does_the_same(rest: Caller, group: str, name: str) -> None:
    body = {"to": "time", "value": time.time_ns() // 1_000_000, "topics": [name], "dry_run": True}
    plan = rest.call("POST", path_of(group, "/reset"), body)
    assert "--to-datetime" in plan["command"] and plan["command"].count("--topic") == 1
    run_command(plan["command"])
    committed = {row["partition"]: row for row in rest.get(path_of(group))["partitions"]}
    assert committed[0]["committed"] == RECORDS


@pytest.mark.parametrize(
    "body",
    [{"to": "time"}, {"to": "offset", "value": -1}, {"to": "offset", "value": "x"}, {}],
)
def test_an_invalid_reset_is_refused(rest: Caller, body: dict[str, Any]) -> None:
    assert rest.problem("POST", "groups/any/reset", body)[:2] == (400, "invalid")


def test_offsets_of_a_topic_are_deleted(rest: Caller, group: str, name: str) -> None:
    path = path_of(group, f"/offsets?topic={name}")
    plan = rest.call("DELETE", f"{path}&dry_run=true")
    assert plan["changes"] == [
        {"topic": name, "partition": 0, "from": COMMITTED, "to": None, "lag": None}
    ]
    rest.call("DELETE", path)
    assert rest.problem("DELETE", path)[0] == 404


def test_a_group_is_deleted(rest: Caller, group: str, name: str) -> None:
    plan = rest.call("DELETE", path_of(group, "?dry_run=true"))
    assert plan["dry_run"] and rest.get(path_of(group))["state"] == "Empty"
    run_command(plan["command"])
    assert rest.problem("GET", path_of(group))[0] == 404
