"""Topics by the REST API."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.clusters import Cluster
from tests.console.rest.caller import Caller, run_command
from tests.processes import until

pytestmark = pytest.mark.slow


def produce(cluster: Cluster, topic: str, count: int, *, is_idempotent: bool = False) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": is_idempotent}
    )
    for number in range(count):
        producer.produce(topic, f"value {number}".encode(), partition=0)
    assert producer.flush(30) == 0


def create(rest: Caller, name: str, **more: Any) -> Any:
    return rest.call("POST", "topics", {"name": name, "partitions": 2, **more})


def listed(rest: Caller, query: str) -> list[str]:
    return [row["name"] for row in rest.get(f"topics?{query}")["items"]]


def test_a_dry_run_shows_the_placement_and_creates_nothing(rest: Caller, name: str) -> None:
    body = {"name": name, "partitions": 4, "replication_factor": 2, "dry_run": True}
    plan = rest.call("POST", "topics", body)
    assert plan["dry_run"] and len(plan["placement"]) == 4
    assert all(len(set(row["replicas"])) == 2 for row in plan["placement"])
    assert f"riverrun topics create {name} --partitions 4 --replication-factor 2" in plan["command"]
    assert name not in listed(rest, f"q={name}")


def test_a_topic_is_created_with_settings_and_deleted(rest: Caller, name: str) -> None:
    made = create(rest, name, replication_factor=2, configs={"retention.ms": "3600000"})
    assert len(made["placement"]) == 2 and not made["dry_run"]
    topic = rest.get(f"topics/{name}")
    assert topic["retention_ms"] == 3_600_000 and topic["cleanup_policy"] == "delete"
    assert (topic["partitions"], topic["replication_factor"]) == (2, 2)
    assert re.fullmatch(r"[0-9a-f-]{36}", topic["topic_id"])
    plan = rest.call("DELETE", f"topics/{name}?dry_run=true")
    assert plan["partitions"] == 2
    assert listed(rest, f"q={name}") == [name]
    rest.call("DELETE", f"topics/{name}")
    until(lambda: not listed(rest, f"q={name}"), seconds=30, what="the topic is gone")
    assert rest.problem("GET", f"topics/{name}")[:2] == (404, "not_found")


def test_the_command_of_a_dry_run_does_the_same(rest: Caller, name: str) -> None:
    configs = {"retention.ms": "60000", "cleanup.policy": "compact,delete"}
    body = {"name": name, "partitions": 3, "configs": configs, "dry_run": True}
    run_command(rest.call("POST", "topics", body)["command"])
    topic = rest.get(f"topics/{name}")
    assert (topic["partitions"], topic["retention_ms"]) == (3, 60_000)
    run_command(rest.call("DELETE", f"topics/{name}?dry_run=true")["command"])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"name": "a b"}, 400, "alphanumerics"),
        ({"name": "x", "replication_factor": 9}, 400, "replication factor"),
        ({"name": "x", "configs": {"retention.mss": "1"}}, 400, "retention.mss"),
        ({"name": "x", "configs": {"retention.ms": "soon"}}, 400, "retention.ms"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_invalid_topic_is_refused(
    rest: Caller, body: dict[str, Any], status: int, text: str, *, dry_run: bool
) -> None:
    found, _, told = rest.problem("POST", "topics", {**body, "dry_run": dry_run})
    assert found == status
    assert text.lower() in told.lower()


def test_an_existing_topic_is_a_conflict(rest: Caller, name: str) -> None:
    create(rest, name)
    assert rest.problem("POST", "topics", {"name": name})[:2] == (409, "conflict")


def test_lists_are_searched_sorted_and_paged(rest: Caller, cluster: Cluster, name: str) -> None:
    for suffix, partitions in (("a", 3), ("b", 1), ("c", 2)):
        rest.call("POST", "topics", {"name": f"{name}-{suffix}", "partitions": partitions})
    produce(cluster, f"{name}-b", 20)
    names = {suffix: f"{name}-{suffix}" for suffix in "abc"}
    assert listed(rest, f"q={name.upper()}") == [names["a"], names["b"], names["c"]]
    assert listed(rest, f"q={name}&order=desc") == [names["c"], names["b"], names["a"]]
    assert listed(rest, f"q={name}&sort=partitions") == [names["b"], names["c"], names["a"]]

    def largest(measure: str) -> str:
        return listed(rest, f"q={name}&sort={measure}&order=desc")[0]

    def are_measured() -> bool:
        return largest("records") == largest("size") == names["b"]

    until(are_measured, seconds=30, what="topics are sorted by their records and size")
    page = rest.get(f"topics?q={name}&limit=2&page=2")
    assert [row["name"] for row in page["items"]] == [names["c"]]
    assert (page["total"], page["page"], page["limit"]) == (3, 2, 2)
    (row,) = rest.get(f"topics?q={names['b']}")["items"]
    assert row["records"] == 20 and row["size"] > 0 and row["under_replicated"] == 0


def test_internal_topics_are_listed_on_request(rest: Caller, cluster: Cluster) -> None:
    cluster.coordinator("any")  # the first question creates the topic of offsets
    until(
        lambda: "__consumer_offsets" in listed(rest, "limit=1000&internal=true"),
        seconds=30,
        what="the topic of offsets is listed",
    )
    assert "__consumer_offsets" not in listed(rest, "limit=1000")


def test_an_unknown_order_names_the_known_ones(rest: Caller) -> None:
    status, code, text = rest.problem("GET", "topics?sort=colour")
    assert (status, code) == (400, "invalid")
    assert "messages_in" in text


def test_rates_follow_from_two_looks(rest: Caller, cluster: Cluster, name: str) -> None:
    create(rest, name)

    def rate() -> float:
        produce(cluster, name, 10)
        (row,) = rest.get(f"topics?q={name}")["items"]
        return row["messages_in"] or 0.0

    until(lambda: rate() > 0, seconds=30, what="records per second are measured")


def test_partitions_show_their_replicas(rest: Caller, cluster: Cluster, name: str) -> None:
    create(rest, name, replication_factor=3)
    produce(cluster, name, 10)
    page = rest.get(f"topics/{name}/partitions")
    assert page["total"] == 2
    first = page["items"][0]
    assert (first["partition"], first["start_offset"], first["end_offset"]) == (0, 0, 10)
    assert not first["offline"] and not first["under_replicated"]
    assert sum(one["is_leader"] for one in first["replicas"]) == 1
    assert sorted(one["node"] for one in first["replicas"]) == [1, 2, 3]
    assert all(one["in_sync"] for one in first["replicas"])
    assert rest.get(f"topics/{name}/partitions?limit=1&page=2")["items"][0]["partition"] == 1


def test_partitions_are_added(rest: Caller, name: str) -> None:
    create(rest, name)
    plan = rest.call("POST", f"topics/{name}/partitions", {"count": 5, "dry_run": True})
    assert [row["partition"] for row in plan["placement"]] == [2, 3, 4]
    assert rest.get(f"topics/{name}")["partitions"] == 2
    made = rest.call("POST", f"topics/{name}/partitions", {"count": 3})
    assert [row["partition"] for row in made["placement"]] == [2]
    assert rest.get(f"topics/{name}")["partitions"] == 3
    for dry_run in (True, False):
        body = {"count": 1, "dry_run": dry_run}
        assert rest.problem("POST", f"topics/{name}/partitions", body)[0] == 400


def test_replicas_are_added(rest: Caller, name: str) -> None:
    create(rest, name, replication_factor=1)
    path = f"topics/{name}/replicas"
    plan = rest.call("POST", path, {"replication_factor": 2, "dry_run": True})
    assert plan["plan"] is None and all(len(row["replicas"]) == 2 for row in plan["placement"])
    assert rest.get(f"topics/{name}")["replication_factor"] == 1
    assert rest.call("POST", path, {"replication_factor": 2})["plan"]

    def is_done() -> bool:
        """Replicas that are being added count from the beginning, so the moves must end, too."""
        has_two = rest.get(f"topics/{name}")["replication_factor"] == 2
        return has_two and not rest.get("moves")["moves"]

    until(is_done, seconds=60, what="the topic has two replicas")
    assert rest.problem("POST", path, {"replication_factor": 9})[0] == 400


def test_settings_are_changed_and_reset(rest: Caller, name: str) -> None:
    create(rest, name)
    path = f"topics/{name}/configs"

    def retention() -> dict[str, Any]:
        return next(row for row in rest.get(path)["items"] if row["name"] == "retention.ms")

    before = retention()
    assert before["is_default"] and before["doc"] and not before["is_read_only"]
    plan = rest.call("PATCH", path, {"set": {"retention.ms": "1000"}, "dry_run": True})
    assert plan["changes"] == [{"name": "retention.ms", "before": before["value"], "after": "1000"}]
    assert retention() == before
    rest.call("PATCH", path, {"set": {"retention.ms": "1000"}})
    after = retention()
    assert (after["value"], after["is_default"], after["source"]) == ("1000", False, "topic")
    reset = rest.call("PATCH", path, {"reset": ["retention.ms"], "dry_run": True})
    run_command(reset["command"])
    assert retention()["value"] == before["value"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"set": {"retention.mss": "1"}}, "did you mean retention.ms"),
        ({"set": {"retention.ms": "x"}}, "retention.ms"),
        ({"set": {"retention.ms": "1"}, "reset": ["retention.ms"]}, "at once"),
        ({}, "No setting"),
    ],
)
def test_invalid_settings_are_refused(
    rest: Caller, name: str, body: dict[str, Any], text: str
) -> None:
    topic = f"{name}-{len(body)}-{len(str(body))}"
    create(rest, topic)
    status, code, told = rest.problem("PATCH", f"topics/{topic}/configs", body)
    assert (status, code) == (400, "invalid")
    assert text in told


def test_records_are_deleted_before_an_offset(rest: Caller, cluster: Cluster, name: str) -> None:
    create(rest, name)
    produce(cluster, name, 10)
    path = f"topics/{name}/trim"
    plan = rest.call("POST", path, {"before": {"0": 4}, "dry_run": True})
    assert plan["records"] == 4
    assert f"riverrun topics trim {name}:0 --before 4 --yes" in plan["command"]
    assert rest.get(f"topics/{name}")["records"] == 10
    rest.call("POST", path, {"before": {"0": 4}})
    assert rest.get(f"topics/{name}")["records"] == 6
    assert rest.call("POST", path, {"before": "all"})["records"] == 6
    assert rest.get(f"topics/{name}")["records"] == 0
    assert "beyond the end" in rest.problem("POST", path, {"before": {"0": 99}})[2]
    assert rest.problem("POST", path, {"before": {"7": 0}})[0] == 404
    assert rest.problem("POST", path, {"before": "some"})[0] == 400


def test_idempotent_producers_are_listed(rest: Caller, cluster: Cluster, name: str) -> None:
    create(rest, name)
    produce(cluster, name, 3, is_idempotent=True)
    (row,) = rest.get(f"topics/{name}/producers")["items"]
    assert (row["partition"], row["last_sequence"], row["transaction_start"]) == (0, 2, None)
    assert row["producer_id"] >= 0 and row["last_timestamp_ms"] > 1_600_000_000_000


@pytest.mark.parametrize("part", ["", "/partitions", "/configs", "/groups", "/producers"])
def test_an_unknown_topic_is_a_404(rest: Caller, part: str) -> None:
    assert rest.problem("GET", f"topics/nowhere{part}")[:2] == (404, "not_found")
