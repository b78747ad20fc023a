"""Moves and plans by REST: balance, move, watch, cancel, empty a node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clusters import Cluster
from tests.compatibility.confluent import send
from tests.console.rest.caller import Caller, V3Caller, run_command
from tests.processes import until

pytestmark = pytest.mark.slow


def create(v3: V3Caller, name: str, assignment: list[list[int]]) -> None:
    rows = [{"partition_id": at, "broker_ids": nodes} for at, nodes in enumerate(assignment)]
    v3.call("POST", "topics", {"topic_name": name, "replicas_assignments": rows}, status=201)


def replicas(v3: V3Caller, topic: str, partition: int = 0) -> list[int]:
    found = v3.get(f"topics/{topic}/partitions/{partition}/replicas")["data"]
    return [row["broker_id"] for row in found]


def plan_of(rest: Caller, plan: str) -> dict[str, Any]:
    (found,) = [row for row in rest.get("moves")["plans"] if row["id"] == plan]
    return dict(found)


def test_quorum_names_voters_and_features(cluster: Cluster, rest: Caller) -> None:
    found = rest.get("quorum")
    assert found["leader"] == cluster.controller()
    assert [row["node"] for row in found["voters"]] == [1, 2, 3]
    assert {row["role"] for row in found["voters"]} == {"leader", "follower"}
    assert found["observers"] == []
    assert found["features"]["metadata.version"] > 0
    assert run_command(found["command"]).stdout


def test_a_move_is_planned_started_watched_and_cancelled(
    cluster: Cluster, rest: Caller, v3: V3Caller, name: str
) -> None:
    create(v3, name, [[1, 2], [1, 2]])
    send(cluster.bootstrap, name, [b"x" * 10_000] * 300)
    body = {"partition": 0, "to": [3, 2], "throttle": 100_000}
    planned = rest.call("POST", f"topics/{name}/move", {**body, "dry_run": True})
    (move,) = planned["moves"]
    assert (move["from"], move["to"], move["topic"]) == ([1, 2], [3, 2], name)
    assert move["bytes"] == planned["bytes"] > 1_000_000
    assert planned["seconds"] > 10
    assert planned["plan"] is None
    expected = f"riverrun topics move {name}:0 --to 3,2 --throttle 100000 --yes"
    assert planned["command"].startswith(expected)
    assert rest.get("moves")["moves"] == []

    started = rest.call("POST", f"topics/{name}/move", body)
    assert started["plan"].startswith("move-")
    assert started["behind"] == []

    def copying() -> dict[str, Any] | None:
        rows = rest.get("moves")["moves"]
        return next((row for row in rows if row["plan"] and row["rate"]), None)

    seen = until(copying, seconds=60, what="bytes are copied at a rate")
    assert (seen["topic"], seen["from"], seen["to"]) == (name, [1, 2], [3, 2])
    assert seen["plan"] == started["plan"]
    assert 0 < seen["bytes_done"] < seen["bytes_total"]
    assert seen["eta_seconds"] > 0
    assert not seen["stalled"]
    running = plan_of(rest, started["plan"])
    assert (running["state"], running["moves"], running["moves_done"]) == ("running", 1, 0)
    assert running["bytes"] == started["bytes"]
    assert running["throttle"] == 100_000
    (row,) = v3.get(f"topics/{name}/partitions/-/reassignment")["data"]
    assert (row["adding_replicas"], row["removing_replicas"]) == ([3], [1])
    topic = rest.get(f"topics/{name}")
    assert (topic["replication_factor"], topic["moving"]) == (2, 1), "without the added replica"
    shown_rows = rest.get(f"topics/{name}/partitions")["items"]
    assert [row["moving"] for row in shown_rows] == [True, False]
    assert [one["node"] for one in shown_rows[0]["replicas"] if one["is_added"]] == [3]
    other = {"partition": 1, "to": [3, 2], "dry_run": True}
    assert rest.call("POST", f"topics/{name}/move", other)["behind"] == [started["plan"]]
    again = rest.problem("POST", f"topics/{name}/move", body)
    assert again[:2] == (409, "conflict")

    place = {"topic": name, "partition": 0}
    shown = rest.call("POST", "moves/cancel", {**place, "dry_run": True})
    assert shown["moves"] == [{**place, "reason": None}]
    ended = rest.call("POST", "moves/cancel", place)
    assert (ended["moves"], ended["failures"]) == ([{**place, "reason": None}], [])
    until(lambda: not rest.get("moves")["moves"], seconds=30, what="the move ends")
    until(
        lambda: plan_of(rest, started["plan"])["state"] != "running",
        seconds=30,
        what="the plan ends",
    )
    assert sorted(replicas(v3, name)) == [1, 2]


def test_the_command_of_a_move_does_the_same(rest: Caller, v3: V3Caller, name: str) -> None:
    create(v3, name, [[1, 2]])
    planned = rest.call("POST", f"topics/{name}/move", {"to": [2, 3], "dry_run": True})
    run_command(planned["command"])
    assert replicas(v3, name) == [2, 3]


def test_balance_answers_at_once_and_the_controller_evens_the_cluster(
    rest: Caller, v3: V3Caller, name: str
) -> None:
    create(v3, name, [[1, 2]] * 9)
    planned = rest.call("POST", "balance", {"dry_run": True})
    assert planned["moves"]
    assert all(move["reason"] for move in planned["moves"])
    before, after = planned["before"]["replicas"], planned["after"]["replicas"]
    assert before["max_over_mean"] > after["max_over_mean"]
    started = rest.call("POST", "balance", {"throttle": 50_000_000})
    assert "--throttle 50000000 --yes" in started["command"]
    done = until(
        lambda: (found := plan_of(rest, started["plan"]))["state"] == "done" and found,
        seconds=60,
        what="the plan is done",
    )
    assert done["moves_done"] == done["moves"] == len(started["moves"])
    until(
        lambda: not rest.call("POST", "balance", {"dry_run": True})["moves"],
        seconds=30,
        what="nothing is left to move",
    )
    even = rest.call("POST", "balance", {})
    assert (even["plan"], even["moves"]) == (None, [])
    v3.call("DELETE", f"topics/{name}", status=204)


def test_a_node_is_emptied_loses_its_vote_and_returns(
    rest: Caller, v3: V3Caller, name: str
) -> None:
    create(v3, name, [[3, 1], [2, 3]])
    assert rest.get("nodes/3")["voter"]
    planned = rest.call("POST", "nodes/3/decommission", {"dry_run": True})
    assert (planned["state"], planned["node"], planned["plan"]) == ("moving", 3, None)
    leaving = [row["partition"] for row in planned["moves"] if row["topic"] == name]
    assert sorted(leaving) == [0, 1]
    assert planned["command"].startswith("riverrun cluster decommission 3 --yes")
    started = rest.call("POST", "nodes/3/decommission", {})
    assert started["plan"]
    until(
        lambda: plan_of(rest, started["plan"])["state"] == "done",
        seconds=60,
        what="the plan is done",
    )
    ended = until(
        lambda: (
            (found := rest.call("POST", "nodes/3/decommission", {}))["state"] == "empty" and found
        ),
        seconds=30,
        what="node 3 is empty",
    )
    assert ended["vote_removed"]
    assert 3 not in replicas(v3, name)
    about = until(
        lambda: (found := rest.get("nodes/3"))["voter"] is False and found,
        seconds=30,
        what="node 3 has no vote",
    )
    assert (about["mode"], about["replicas"]) == ("decommissioning", 0)
    assert [row["node"] for row in rest.get("quorum")["voters"]] == [1, 2]
    refused = rest.problem("POST", f"topics/{name}/move", {"to": [3, 1]})
    assert refused[:2] == (400, "invalid")
    assert "being decommissioned" in refused[2]

    undone = rest.call("POST", "nodes/3/decommission", {"undo": True})
    assert undone["state"] == "active"
    assert undone["command"].startswith("riverrun cluster recommission 3")
    run_command(rest.get("quorum")["command"].replace("quorum status", "quorum add 3"))
    until(lambda: len(rest.get("quorum")["voters"]) == 3, seconds=30, what="node 3 votes again")


@pytest.mark.parametrize(
    ("path", "body", "expected", "words"),
    [
        ("balance", {"throttle": 0}, (400, "invalid"), "throttle"),
        ("balance", {"throttle": "fast"}, (400, "invalid"), "throttle"),
        ("topics/nosuch/move", {"to": [1]}, (404, "not_found"), "no topic nosuch"),
        ("topics/nosuch/move", {"to": []}, (400, "invalid"), "to"),
        ("topics/nosuch/move", {"to": [1, 1]}, (400, "invalid"), "twice"),
        ("topics/nosuch/move", {"to": [9]}, (404, "not_found"), "Broker 9"),
        ("nodes/9/decommission", {}, (404, "not_found"), "Broker 9"),
        ("nodes/x/decommission", {}, (400, "invalid"), "not the id"),
        ("moves/cancel", {}, (400, "invalid"), "Name a topic"),
        ("moves/cancel", {"all": True, "topic": "a"}, (400, "invalid"), "Name a topic"),
        ("moves/cancel", {"topic": "nosuch"}, (404, "not_found"), "No such move"),
        ("moves/cancel", {"plan": "nosuch"}, (404, "not_found"), "nosuch"),
        ("moves/cancel", {"plan": "a", "partition": 1}, (400, "invalid"), "its topic"),
    ],
)
def test_bad_input_is_explained(
    rest: Caller, path: str, body: dict[str, Any], expected: tuple[int, str], words: str
) -> None:
    status, code, text = rest.problem("POST", path, body)
    assert (status, code) == expected
    assert words in text


def test_nothing_to_cancel_is_no_error_with_all(rest: Caller) -> None:
    found = rest.call("POST", "moves/cancel", {"all": True})
    assert (found["plans"], found["moves"]) == ([], [])
    run_command(found["command"])


def test_a_node_that_cannot_be_emptied_says_why(rest: Caller, v3: V3Caller, name: str) -> None:
    create(v3, name, [[1, 2, 3]])
    status, code, text = rest.problem("POST", "nodes/2/decommission", {})
    assert (status, code) == (409, "conflict")
    assert "cannot be emptied" in text
    assert name in text
    v3.call("DELETE", f"topics/{name}", status=204)
