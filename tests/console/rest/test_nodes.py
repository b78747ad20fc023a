"""The overview and the nodes by the REST API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clusters import Cluster
from tests.console.rest.caller import Caller, run_command
from tests.processes import until

pytestmark = pytest.mark.slow

SETTING = "max.connections.per.ip"


def test_the_overview_has_the_health_in_one_sentence(rest: Caller, cluster: Cluster) -> None:
    rest.call("POST", "topics", {"name": "overview", "partitions": 1, "replication_factor": 3})
    cluster.wait_healthy()
    found = until(
        lambda: (it := rest.get("overview"))["topics"] and not it["under_replicated"] and it,
        seconds=30,
        what="the overview shows a healthy cluster",
    )
    assert (found["nodes"], found["nodes_alive"], found["offline"]) == (3, 3, 0)
    assert found["controller"] == cluster.controller()
    assert found["partitions"] >= 1 and found["transactions_open"] is not None
    sentence = "All 3 nodes are alive and every partition is fully replicated"
    assert found["health"]["sentence"].startswith(sentence)
    assert found["cluster_id"] and found["version"]


def test_nodes_show_their_state(rest: Caller, cluster: Cluster) -> None:
    rows = rest.get("nodes")["items"]
    assert [row["node"] for row in rows] == [1, 2, 3]
    assert all(row["alive"] and row["mode"] == "active" and not row["cordoned"] for row in rows)
    assert sum(row["controller"] for row in rows) == 1
    assert all(row["disk_total"] > row["disk_free"] > 0 and row["version"] for row in rows)
    node = rest.get("nodes/2")
    assert node["port"] == cluster.nodes[2].address[1]
    assert node["started_ms"] > 1_600_000_000_000 and node["memory"] > 1_000_000
    (directory,) = node["log_dirs"]
    assert directory["path"] == str(cluster.nodes[2].data) and not directory["offline"]


def test_an_unknown_node_is_a_404(rest: Caller) -> None:
    assert rest.problem("GET", "nodes/9")[:2] == (404, "not_found")
    assert rest.problem("GET", "nodes/9/configs")[0] == 404
    assert rest.problem("GET", "nodes/first")[:2] == (400, "invalid")


def value_of(rest: Caller, name: str) -> dict[str, Any]:
    return next(row for row in rest.get("nodes/1/configs")["items"] if row["name"] == name)


def test_settings_of_a_node_are_changed_and_reset(rest: Caller) -> None:
    before = value_of(rest, SETTING)
    assert before["doc"] and not before["is_read_only"]
    body: dict[str, Any] = {"set": {SETTING: "5000"}, "dry_run": True}
    plan = rest.call("PATCH", "nodes/1/configs", body)
    assert plan["changes"] == [{"name": SETTING, "before": before["value"], "after": "5000"}]
    assert value_of(rest, SETTING) == before
    run_command(plan["command"])
    until(lambda: value_of(rest, SETTING)["value"] == "5000", seconds=30, what="it is changed")
    assert not value_of(rest, SETTING)["is_default"]
    rest.call("PATCH", "nodes/1/configs", {"reset": [SETTING]})
    until(lambda: value_of(rest, SETTING) == before, seconds=30, what="it is reset")


def test_a_setting_of_the_file_cannot_be_changed(rest: Caller) -> None:
    status, code, text = rest.problem("PATCH", "nodes/1/configs", {"set": {"node.id": "7"}})
    assert (status, code) == (400, "invalid")
    assert "in the file of each node" in text
    assert (
        rest.problem("PATCH", "nodes/1/configs", {"set": {"max.connections.per.i": "2"}})[0] == 404
    )


def test_a_node_in_maintenance_leads_nothing(rest: Caller, cluster: Cluster) -> None:
    rest.call("POST", "topics", {"name": "maintained", "partitions": 6, "replication_factor": 3})
    cluster.wait_healthy()
    until(lambda: rest.get("nodes/2")["leaders"] > 0, seconds=30, what="node 2 leads something")
    plan = rest.call("POST", "nodes/2/maintenance", {"on": True, "dry_run": True})
    assert plan["leaders"] > 0
    body = {"on": True, "force": bool(plan["offline"] or plan["not_writable"])}
    assert rest.call("POST", "nodes/2/maintenance", body)["mode"] == "maintenance"
    until(
        lambda: (
            (node := rest.get("nodes/2"))["mode"] == "maintenance"
            and node["leaders"] <= len(plan["offline"])
        ),
        seconds=60,
        what="node 2 leads nothing",
    )
    others = rest.problem("POST", "nodes/3/maintenance", {"on": True})
    assert others[:2] == (409, "conflict") and "in maintenance already" in others[2]
    rest.call("POST", "nodes/2/maintenance", {"on": False})
    until(lambda: rest.get("nodes/2")["mode"] == "active", seconds=30, what="it is active")


def test_a_killed_node_is_a_concern_until_it_is_back(rest: Caller, cluster: Cluster) -> None:
    rest.call("POST", "topics", {"name": "killed", "partitions": 3, "replication_factor": 3})
    cluster.wait_healthy()
    cluster.nodes[3].kill()
    health = until(
        lambda: (
            (it := rest.get("overview"))["nodes_alive"] == 2
            and it["under_replicated"] > 0
            and it["health"]
        ),
        seconds=30,
        what="the overview shows the dead node",
    )
    assert health["level"] in ("care", "bad")
    texts = [concern["text"] for concern in health["concerns"]]
    assert "Node 3 does not respond." in texts
    assert all(concern["remedy"] for concern in health["concerns"])
    assert not rest.get("nodes/3")["alive"]
    topic = next(row for row in rest.get("topics?q=killed")["items"] if row["name"] == "killed")
    assert topic["under_replicated"] == 3
    cluster.nodes[3].restart()
    cluster.wait_healthy()
    until(
        lambda: rest.get("overview")["health"]["level"] == "good",
        seconds=60,
        what="the cluster is healthy again",
    )
