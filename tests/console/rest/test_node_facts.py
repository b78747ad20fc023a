"""Facts of nodes by REST: who may see them, and the sum over three nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.console.rest.caller import Caller
from tests.console.rest.conftest import secure_caller
from tests.processes import until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

PASSWORD = "a long password"
FACTS = ("timeline", "timeline/diff?from=0&to=9", "history", "nodes/1/connections")


def rule(user: str, operation: str, *, topic: str = "") -> dict[str, str]:
    """A rule about the cluster or a topic."""
    return {
        "principal": f"User:{user}", "host": "*", "operation": operation, "permission": "allow",
        "resource_type": "topic" if topic else "cluster", "resource": topic or "kafka-cluster",
        "pattern": "literal",
    }  # fmt: skip


def new_user(admin: Caller, secure: SecureNode, name: str) -> Caller:
    admin.call("POST", "users", {"name": name, "password": PASSWORD})
    return secure_caller(secure, name, PASSWORD)


def test_facts_need_the_right_to_describe_the_cluster(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    user = new_user(admin, secure, name)
    for path in FACTS:
        assert user.problem("GET", path)[:2] == (403, "forbidden"), path
    admin.call("POST", "acls", {"rules": [rule(name, "describe")]})

    def is_served(path: str) -> bool:
        return user.send("GET", path).status_code == 200

    for path in FACTS:
        until(partial(is_served, path), seconds=30, what=path)
    user.close()


def test_values_of_settings_need_the_right_to_describe_settings(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    admin.call("POST", "topics", {"name": name, "partitions": 1, "replication_factor": 1})
    admin.call("PATCH", f"topics/{name}/configs", {"set": {"retention.ms": "123456"}})
    user = new_user(admin, secure, name)
    admin.call("POST", "acls", {"rules": [rule(name, "describe")]})
    path = f"timeline?kinds=config&q={name}"
    until(lambda: user.send("GET", path).status_code == 200, seconds=30, what="the rule")
    assert user.get(path)["items"] == [], "the user may not know of the topic"
    admin.call("POST", "acls", {"rules": [rule(name, "describe", topic=name)]})
    until(lambda: user.get(path)["items"], seconds=30, what="the topic is visible")
    (hidden,) = user.get(path)["items"]
    assert hidden["details"]["set"] == {"retention.ms": "(hidden)"}
    admin.call("POST", "acls", {"rules": [rule(name, "describe_configs", topic=name)]})
    until(
        lambda: user.get(path)["items"][0]["details"]["set"] == {"retention.ms": "123456"},
        seconds=30,
        what="the value is shown",
    )
    user.close()


def test_quotas_in_the_timeline_need_the_right_to_describe_settings(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    begin = admin.get("timeline")["end_offset"] - 1
    admin.call("PUT", "quotas", {"user": f"{name}-limited", "limits": {"producer_byte_rate": 5}})
    user = new_user(admin, secure, name)
    admin.call("POST", "acls", {"rules": [rule(name, "describe")]})
    path, diff = "timeline?kinds=quota", f"timeline/diff?from={begin}&to=999999"
    until(lambda: user.send("GET", path).status_code == 200, seconds=30, what="the rule")
    assert f"{name}-limited" not in str(user.get(path)) + str(user.get(diff))
    assert f"{name}-limited" in str(admin.get(path)) and f"{name}-limited" in str(admin.get(diff))
    admin.call("POST", "acls", {"rules": [rule(name, "describe_configs")]})
    until(lambda: f"{name}-limited" in str(user.get(path)), seconds=30, what="the quota is shown")
    user.close()


def test_passwords_are_never_in_the_timeline(admin: Caller, name: str) -> None:
    admin.call("POST", "users", {"name": name, "password": PASSWORD})
    shown = admin.get(f"timeline?kinds=user&q={name}")["items"]
    assert shown
    assert PASSWORD not in str(shown)
    assert {"mechanism", "iterations"} >= set(shown[0]["details"])


def test_user_reads_messages_with_own_rights(secure: SecureNode, admin: Caller, name: str) -> None:
    admin.call("POST", "topics", {"name": name, "partitions": 1, "replication_factor": 1})
    admin.call("POST", f"topics/{name}/messages", {"records": [{"value": "secret"}]})
    user = new_user(admin, secure, name)
    for path in (f"topics/{name}/messages", f"topics/{name}/messages/0/0", f"topics/{name}/tail"):
        assert user.problem("GET", path)[0] in (403, 404), path
    body = {"records": [{"value": "x"}]}
    assert user.problem("POST", f"topics/{name}/messages", body)[0] in (403, 404)
    see = {"principal": name, "operation": "DESCRIBE", "resource_type": "TOPIC", "resource": name}
    admin.call("POST", "acls", {"rules": [see]})
    refused = user.problem("GET", f"topics/{name}/messages")
    assert refused[:2] == (403, "forbidden")
    assert f"lacks the right Read on topic {name}" in refused[2]
    user.close()


def test_history_of_the_cluster_is_the_sum_of_its_nodes(cluster: Cluster, rest: Caller) -> None:
    def newest(query: str) -> dict[int, float]:
        points = rest.get(f"history?minutes=5&series=memory{query}")["series"]["memory"]["points"]
        return {int(moment): value for moment, value in points}

    def agrees() -> bool:
        whole = newest("")
        parts = [newest(f"&node={node}") for node in cluster.nodes]
        shared = [moment for moment in whole if all(moment in part for part in parts)]
        return bool(shared) and all(
            abs(whole[moment] - sum(part[moment] for part in parts)) < 0.01 * whole[moment]
            for moment in shared[-1:]
        )

    until(agrees, seconds=60, what="all nodes have a history")


def test_history_keeps_the_past_of_a_node_that_stops(cluster: Cluster, rest: Caller) -> None:
    def history() -> dict[str, Any]:
        found: dict[str, Any] = rest.get("history?minutes=5&series=memory")
        return found

    before = until(
        lambda: (found := history())["series"]["memory"]["points"] and not found["gaps"] and found,
        seconds=60,
        what="all nodes have a history",
    )
    cluster.nodes[3].kill()
    try:
        after = until(
            lambda: (found := history())["gaps"] and found, seconds=90, what="node 3 is missing"
        )
    finally:
        cluster.nodes[3].restart()
        cluster.wait_healthy()
    assert [gap["node"] for gap in after["gaps"]] == [3]
    assert after["gaps"][0]["after_ms"] is not None
    known = dict(map(tuple, before["series"]["memory"]["points"][:-1]))
    past = {at: value for at, value in after["series"]["memory"]["points"] if at in known}
    assert past == known
