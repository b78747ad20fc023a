"""History, clients and the timeline by REST, on a real node."""

from __future__ import annotations

import time

import pytest

from tests.compatibility.confluent import consumer
from tests.console.rest.caller import Caller
from tests.processes import Riverrun, until

pytestmark = pytest.mark.slow

HISTORY_SECONDS_MAX = 40


def test_history_has_points_of_the_cluster_a_node_and_a_topic(rest: Caller, topic: str) -> None:
    rest.call("POST", f"topics/{topic}/messages", {"records": [{"value": "x" * 1000}] * 100})

    def points(query: str) -> list[list[float]]:
        found = rest.get(f"history?minutes=5&series=bytes_in&{query}")
        assert found["step_ms"] == 10_000
        series: list[list[float]] = found["series"]["bytes_in"]["points"]
        return series

    until(
        lambda: any(value > 0 for _, value in points(f"topic={topic}")),
        seconds=HISTORY_SECONDS_MAX,
        what="the topic has a history",
    )
    cluster, node = points(""), points("node=1")
    assert max(value for _, value in cluster) >= max(value for _, value in points(f"topic={topic}"))
    assert cluster[0][0] % 10_000 == 0
    assert abs(cluster[-1][0] / 1000 - time.time()) < 60
    assert node[0] == cluster[0]
    everything = rest.get("history")
    assert set(everything["series"]) >= {"cpu", "memory", "produce_p99", "connections"}
    day = rest.get("history?minutes=1440&series=cpu")
    assert day["step_ms"] == 60_000


def test_history_has_the_lag_of_a_group(node: Riverrun, rest: Caller, topic: str) -> None:
    send = {"records": [{"value": "x", "partition": 0}] * 10}
    rest.call("POST", f"topics/{topic}/messages", send)
    group = f"{topic}-group"
    with consumer(node.bootstrap, group, enable_auto_commit=False) as reader:
        reader.subscribe([topic])
        message = reader.poll(30)
        assert message is not None
        reader.commit(message=message, asynchronous=False)

        def points(name: str) -> list[list[float]]:
            found = rest.get(f"history?minutes=5&group={group}&series={name}")
            series: list[list[float]] = found["series"][name]["points"]
            return series

        until(lambda: points("lag"), seconds=HISTORY_SECONDS_MAX, what="the lag is measured")
        assert points("lag")[-1][1] == 9
        assert points("lag_seconds")[-1][1] >= 0

        everyone = rest.get("history?minutes=5&series=group_lag")["series"]["group_lag"]["points"]
        assert everyone[-1][1] >= 9, "the lag of all groups includes it"


@pytest.mark.parametrize(
    "query",
    [
        "series=nonsense",
        "series=lag",
        "minutes=0",
        "minutes=1441",
        "node=x",
        "step_seconds=1",
        "topic=a&series=cpu",
        "topic=a&group=b",
    ],
)
def test_invalid_history_is_explained(rest: Caller, query: str) -> None:
    assert rest.problem("GET", f"history?{query}")[:2] == (400, "invalid")


def test_unknown_node_is_not_found(rest: Caller) -> None:
    assert rest.problem("GET", "history?node=9")[:2] == (404, "not_found")
    assert rest.problem("GET", "nodes/9/connections")[:2] == (404, "not_found")
    assert rest.problem("GET", "nodes/x/connections")[:2] == (400, "invalid")


def test_clients_are_listed_with_their_library_and_group(
    node: Riverrun, rest: Caller, topic: str
) -> None:
    rest.call("POST", f"topics/{topic}/messages", {"records": [{"value": "x"}]})
    client = f"{topic}-client"
    with consumer(node.bootstrap, f"{topic}-group", client_id=client) as reader:
        reader.subscribe([topic])
        assert reader.poll(30) is not None

        def listed() -> list[dict[str, object]]:
            path = f"nodes/1/connections?q={client}&sort=requests&order=desc"
            items: list[dict[str, object]] = rest.get(path)["items"]
            return items

        rows = until(
            lambda: [row for row in listed() if row["groups"]],
            seconds=30,
            what="the group is known",
        )
        assert rows[0]["client_id"] == client
        assert rows[0]["groups"] == [f"{topic}-group"]
        assert rows[0]["software"] == "confluent-kafka-python"
        assert rows[0]["principal"] == "User:ANONYMOUS"
    assert rest.problem("GET", "nodes/1/connections?sort=nonsense")[:2] == (400, "invalid")
    assert rest.get("nodes/1/connections?limit=1")["limit"] == 1


def test_timeline_and_difference_name_changes(rest: Caller, topic: str) -> None:
    page = rest.get(f"timeline?q={topic}&kinds=topic")
    (created,) = page["items"]
    assert created["text"] == f"Topic {topic} was created with 3 partitions and 1 replica."
    rest.call("PATCH", f"topics/{topic}/configs", {"set": {"retention.ms": "1000"}})
    found = rest.get(f"timeline/diff?from={created['offset'] + 3}&to={10**9}")
    changes = [change for change in found["changes"] if change["kind"] == "config"]
    assert changes == [
        {
            "kind": "config",
            "subject": f"topic {topic}",
            "before": None,
            "after": {"retention.ms": "1000"},
        }
    ]
    now_ms = int(time.time() * 1000)
    by_time = rest.get(f"timeline/diff?from={created['time_ms'] - 1}&to={now_ms + 1000}")
    assert topic in {change["subject"] for change in by_time["changes"]}
    older = rest.get(f"timeline?before={created['offset']}&limit=2")
    assert len(older["items"]) >= 2
    assert all(event["offset"] < created["offset"] for event in older["items"])


@pytest.mark.parametrize(
    "path",
    [
        "timeline?kinds=nonsense",
        "timeline?limit=0",
        "timeline?before=-1",
        "timeline/diff",
        "timeline/diff?from=x&to=1",
    ],
)
def test_invalid_timeline_is_explained(rest: Caller, path: str) -> None:
    assert rest.problem("GET", path)[:2] == (400, "invalid")
