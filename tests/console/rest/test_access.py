"""Users, ACLs and quotas by REST, on a secure node, and what an ordinary user may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.rest.caller import Caller, V3Caller, run_command
from tests.console.rest.conftest import secure_caller
from tests.processes import until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

PASSWORD = "correct horse"


def login(secure: SecureNode) -> dict[str, str]:
    return {"RIVERRUN_COMMAND_CONFIG": secure.security["properties"]}


@pytest.fixture(scope="module")
def ordinary(secure: SecureNode, admin: Caller) -> Iterator[Caller]:
    """The REST API as a user without any rights."""
    body = {"name": "ordinary", "password": PASSWORD}
    admin.call("POST", "users", body)
    caller = secure_caller(secure, "ordinary", PASSWORD)
    yield caller
    caller.close()


# Users


def test_a_user_is_added_logs_in_and_is_removed(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    body = {"name": name, "password": PASSWORD, "mechanisms": ["SCRAM-SHA-512"]}
    shown = admin.call("POST", "users", {**body, "dry_run": True})
    expected = f"riverrun users add {name} --mechanism SCRAM-SHA-512"
    assert shown["command"].startswith(expected)
    assert PASSWORD not in str(shown)
    assert admin.get(f"users?q={name}")["items"] == []
    admin.call("POST", "users", body)
    (found,) = admin.get(f"users?q={name}")["items"]
    assert [row["mechanism"] for row in found["mechanisms"]] == ["SCRAM-SHA-512"]
    assert secure.produce(name, PASSWORD, "orders") != ""
    assert admin.problem("POST", "users", body)[:2] == (409, "conflict")

    changed = admin.call("PUT", f"users/{name}/password", {"password": "another"})
    assert changed["command"].startswith(f"riverrun users password {name}")
    stale = secure_caller(secure, name, PASSWORD)
    assert stale.problem("GET", "users")[:2] == (401, "login_required")
    stale.close()
    fresh = secure_caller(secure, name, "another")
    assert fresh.problem("GET", "users")[:2] == (403, "forbidden")
    fresh.close()

    shown = admin.call("DELETE", f"users/{name}?dry_run=true")
    assert admin.get(f"users?q={name}")["total"] == 1
    run_command(shown["command"], **login(secure))
    assert admin.problem("DELETE", f"users/{name}")[:2] == (404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"name": "", "password": "p"},
        {"name": "x", "password": ""},
        {"name": "x", "password": " \n"},
        {"name": "x", "password": "p", "mechanisms": ["PLAIN"]},
    ],
)
def test_a_user_needs_a_name_a_password_and_known_mechanisms(
    admin: Caller, body: dict[str, Any]
) -> None:
    assert admin.problem("POST", "users", body)[:2] == (400, "invalid")


# ACLs


def test_rules_are_added_listed_checked_and_removed(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    rules = [
        {"principal": name, "operation": each, "resource_type": "Topic", "resource": f"{name}."}
        | {"pattern": "prefixed"}
        for each in ("read", "DESCRIBE_CONFIGS")
    ]
    rules.append(
        {"principal": f"User:{name}", "operation": "Delete", "resource_type": "GROUP"}
        | {"resource": "*", "permission": "deny", "host": "10.0.0.1"}
    )
    shown = admin.call("POST", "acls", {"rules": rules, "dry_run": True})
    assert admin.get(f"acls?principal={name}")["items"] == []
    run_command(shown["command"], **login(secure))
    listed = admin.get(f"acls?principal={name}")
    assert listed["authorizer"]
    assert sorted(map(str, listed["items"])) == sorted(map(str, shown["rules"]))
    assert admin.call("POST", "acls", {"rules": rules})["rules"] == shown["rules"]
    assert admin.get(f"acls?principal={name}")["total"] == 3
    of_topic = admin.get(f"acls?principal={name}&resource_type=topic&resource={name}.orders")
    assert [row["operation"] for row in of_topic["items"]] == ["DESCRIBE_CONFIGS", "READ"]
    assert admin.get(f"acls?q={name}.&resource_type=group")["items"] == []

    one, other = rules[0], rules[2]
    shown = admin.call("POST", "acls/delete", {"rules": [one, other], "dry_run": True})
    assert admin.get(f"acls?principal={name}")["total"] == 3
    run_command(shown["command"], **login(secure))
    (left,) = admin.get(f"acls?principal={name}")["items"]
    assert left["operation"] == "DESCRIBE_CONFIGS"
    part = admin.call("POST", "acls/delete", {"rules": rules})
    assert (len(part["rules"]), len(part["unknown"])) == (1, 2)
    assert admin.problem("POST", "acls/delete", {"rules": rules})[:2] == (404, "not_found")


@pytest.mark.parametrize(
    ("kind", "resource", "operation"),
    [
        ("CLUSTER", "kafka-cluster", "ALTER"),
        ("TRANSACTIONAL_ID", "billing it's", "WRITE"),
        ("DELEGATION_TOKEN", "some-id", "DESCRIBE"),
        ("USER", "User:bob", "CREATE_TOKENS"),
    ],
)
def test_commands_exist_for_all_resources(
    secure: SecureNode, admin: Caller, name: str, kind: str, resource: str, operation: str
) -> None:
    rule = {"resource_type": kind, "resource": resource, "operation": operation}
    rules = [{"principal": f"{name} of {kind}", **rule}]
    shown = admin.call("POST", "acls", {"rules": rules, "dry_run": True})
    run_command(shown["command"], **login(secure))
    (found,) = admin.get(f"acls?principal={name} of {kind}")["items"]
    assert rule.items() <= found.items()
    ended = admin.call("POST", "acls/delete", {"rules": rules, "dry_run": True})
    run_command(ended["command"], **login(secure))
    assert admin.get(f"acls?principal={name} of {kind}")["items"] == []


def test_check_names_the_rule_that_decides(secure: SecureNode, admin: Caller, name: str) -> None:
    question = {"user": name, "operation": "Write", "resource_type": "topic", "resource": name}
    denied = admin.call("POST", "acls/check", question)
    assert (denied["allowed"], denied["rule"]) == (False, None)
    allow = {"principal": name, "operation": "ALL", "resource_type": "TOPIC", "resource": "*"}
    admin.call("POST", "acls", {"rules": [allow]})
    allowed = admin.call("POST", "acls/check", question)
    assert allowed["allowed"]
    assert (allowed["rule"]["resource"], allowed["rule"]["permission"]) == ("*", "ALLOW")
    assert "allowed: ALLOW" in run_command(allowed["command"], **login(secure)).stdout
    deny = {**allow, "operation": "WRITE", "resource": name, "permission": "DENY"}
    admin.call("POST", "acls", {"rules": [deny]})
    decided = admin.call("POST", "acls/check", {**question, "host": "10.1.2.3"})
    assert not decided["allowed"]
    assert decided["rule"]["permission"] == "DENY"
    assert "--host 10.1.2.3" in decided["command"]
    first = {**question, "user": secure.security["user"]}
    assert "super user" in admin.call("POST", "acls/check", first)["reason"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"operation": "FLY"}, "operation FLY"),
        ({"resource_type": "PLANE"}, "resource type PLANE"),
        ({"pattern": "MATCH"}, "pattern MATCH"),
        ({"permission": "MAYBE"}, "permission MAYBE"),
        ({"operation": "CLUSTER_ACTION"}, "no operation CLUSTER_ACTION on TOPIC"),
        ({"principal": ""}, "principal"),
    ],
)
def test_bad_rules_are_explained(admin: Caller, rule: dict[str, str], words: str) -> None:
    good = {"principal": "a", "operation": "READ", "resource_type": "TOPIC", "resource": "t"}
    status, code, text = admin.problem("POST", "acls", {"rules": [{**good, **rule}]})
    assert (status, code) == (400, "invalid")
    assert words in text


def test_without_an_authorizer_there_are_no_rules(rest: Caller) -> None:
    found = rest.get("acls")
    assert (found["items"], found["authorizer"]) == ([], False)
    rule = {"principal": "a", "operation": "READ", "resource_type": "TOPIC", "resource": "t"}
    status, code, text = rest.problem("POST", "acls", {"rules": [rule]})
    assert (status, code) == (403, "forbidden")
    assert "authorizer.class.name" in text
    question = {"user": "a", "operation": "READ", "resource_type": "TOPIC", "resource": "t"}
    assert rest.call("POST", "acls/check", question)["allowed"]


# Quotas


def test_quotas_are_set_shown_with_their_use_and_removed(rest: Caller, name: str) -> None:
    entity = {"user": name, "client_id": "<default>"}
    limits = {"producer_byte_rate": 104_858.0, "request_percentage": 12.5}
    wanted = {**limits, "producer_byte_rate": 104_857.6}  # 0.1 MiB
    shown = rest.call("PUT", "quotas", {**entity, "limits": wanted, "dry_run": True})
    assert shown["limits"] == limits
    assert rest.get(f"quotas?q={name}")["items"] == []
    run_command(shown["command"])
    until(lambda: rest.get(f"quotas?q={name}")["items"], seconds=30, what="the quotas are known")
    (found,) = rest.get(f"quotas?q={name}")["items"]
    assert found["limits"] == limits
    assert (found["user"], found["client_id"], found["ip"]) == (name, "<default>", None)
    assert set(found["use"]) == set(limits)
    mixed = {"producer_byte_rate": 5.0, "request_percentage": None}
    rest.call("PUT", "quotas", {**entity, "limits": mixed})
    until(
        lambda: rest.get(f"quotas?q={name}")["items"][0]["limits"] == {"producer_byte_rate": 5.0},
        seconds=30,
        what="one quota is left",
    )
    ended = rest.call(
        "PUT", "quotas", {**entity, "limits": {"producer_byte_rate": None}, "dry_run": True}
    )
    run_command(ended["command"])
    until(lambda: not rest.get(f"quotas?q={name}")["items"], seconds=30, what="no quota is left")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"limits": {"producer_byte_rate": 1}}, "Name a user"),
        ({"user": "a", "limits": {}}, "limits"),
        ({"user": "a", "limits": {"speed": 1}}, "speed"),
        ({"user": "a", "limits": {"connection_creation_rate": 1}}, "producer_byte_rate"),
        ({"user": "a", "limits": {"producer_byte_rate": -1}}, "greater than 0"),
        ({"user": "a", "limits": {"producer_byte_rate": 0.2}}, "greater than 0"),
        ({"ip": "10.0.0.1", "limits": {"connection_creation_rate": 1.5}}, "fractional"),
        ({"user": "a", "ip": "10.0.0.1", "limits": {"producer_byte_rate": 1}}, "Name a user"),
    ],
)
def test_bad_quotas_are_explained(rest: Caller, body: dict[str, Any], words: str) -> None:
    status, code, text = rest.problem("PUT", "quotas", body)
    assert (status, code) == (400, "invalid")
    assert words in text


# Rights


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "quorum", None),
        ("GET", "moves", None),
        ("POST", "balance", {"dry_run": True}),
        ("POST", "nodes/1/decommission", {}),
        ("POST", "moves/cancel", {"all": True}),
        ("GET", "users", None),
        ("POST", "users", {"name": "x", "password": "p"}),
        ("PUT", "users/admin/password", {"password": "p"}),
        ("DELETE", "users/admin", None),
        ("GET", "acls", None),
        (
            "POST",
            "acls",
            {"rules": [{"principal": "ordinary", "operation": "ALL", "resource_type": "CLUSTER"}]},
        ),
        ("GET", "quotas", None),
        ("PUT", "quotas", {"user": "ordinary", "limits": {"producer_byte_rate": None}}),
    ],
)
def test_an_ordinary_user_is_refused_with_the_remedy(
    ordinary: Caller, method: str, path: str, body: dict[str, Any] | None
) -> None:
    status, code, text = ordinary.problem(method, path, body)
    assert (status, code) == (403, "forbidden")
    assert "riverrun acls" in text


def test_a_reader_sees_its_topic_without_the_settings(
    secure: SecureNode, admin: Caller, name: str
) -> None:
    """The rights of a consumer do not include DescribeConfigs."""
    admin.call("POST", "topics", {"name": name, "partitions": 2})
    admin.call("POST", "users", {"name": name, "password": PASSWORD})
    read = {"principal": name, "operation": "READ", "resource_type": "TOPIC", "resource": name}
    admin.call("POST", "acls", {"rules": [read]})
    reader = secure_caller(secure, name, PASSWORD)
    found = reader.get(f"topics/{name}")
    assert (found["partitions"], found["records"]) == (2, 0)
    assert (found["cleanup_policy"], found["retention_ms"]) == (None, None)
    assert reader.problem("GET", f"topics/{name}/configs")[:2] == (403, "forbidden")
    reader.close()
    assert admin.get(f"topics/{name}")["cleanup_policy"] == "delete"


def test_the_health_of_an_ordinary_user_names_its_limits(admin: Caller, ordinary: Caller) -> None:
    assert "that you may see" in ordinary.get("overview")["health"]["sentence"]
    assert "that you may see" not in admin.get("overview")["health"]["sentence"]


def test_an_ordinary_user_sees_no_foreign_transactions(ordinary: Caller) -> None:
    assert ordinary.get("transactions")["items"] == []
    assert ordinary.get("transactions-hanging")["items"] == []
    refused = ordinary.problem("POST", "transactions/foreign/abort", {})
    assert refused[:2] == (403, "forbidden")


def test_requests_without_a_login_are_refused(secure: SecureNode) -> None:
    nobody = Caller(secure.told["nodes"][0]["http"])
    assert nobody.problem("GET", "quorum")[:2] == (401, "login_required")
    refused = nobody.send("GET", "/v3/clusters")
    assert (refused.status_code, refused.json()["error_code"]) == (401, 40101)
    assert "Basic" in refused.headers["www-authenticate"]
    nobody.close()


def test_v3_refuses_what_a_user_may_not_do(
    secure: SecureNode, admin: Caller, ordinary: Caller, name: str
) -> None:
    v3, limited = V3Caller(admin), V3Caller(ordinary)
    v3.call("POST", "topics", {"topic_name": name, "replication_factor": 1}, status=201)
    assert limited.get("topics")["data"] == []
    assert limited.error("GET", f"topics/{name}", status=403) == 40301
    assert limited.error("POST", "topics", {"topic_name": f"{name}2"}, status=403) == 40301
    assert limited.error("POST", f"topics/{name}/records", {}, status=403) == 40301
    assert limited.error("GET", "acls", status=403) == 40301

    rule = {
        "resource_type": "TOPIC", "resource_name": name, "pattern_type": "LITERAL",
        "principal": "User:ordinary", "host": "*", "operation": "ALL", "permission": "ALLOW",
    }  # fmt: skip
    assert v3.send("POST", "acls", json=rule).status_code == 201
    value = {"value": {"type": "STRING", "data": "now"}}
    assert limited.call("POST", f"topics/{name}/records", value)["error_code"] == 200
    listed = v3.get(f"acls?resource_name={name}")
    (row,) = listed["data"]
    assert {**rule}.items() <= row.items()
    assert listed["kind"] == "KafkaAclList"
    more = [{**rule, "operation": each, "resource_name": "other"} for each in ("READ", "WRITE")]
    assert v3.send("POST", "acls:batch", json={"data": more}).status_code == 201
    deleted = v3.call("DELETE", "acls?resource_type=TOPIC&resource_name=other")["data"]
    assert sorted(row["operation"] for row in deleted) == ["READ", "WRITE"]
    assert v3.get("acls?resource_name=other")["data"] == []
    assert v3.error("DELETE", "acls", status=400) == 400
    assert v3.error("GET", "acls?resource_type=PLANE", status=400) == 400
    assert v3.error("POST", "acls", {**rule, "operation": "ANY"}, status=400) == 400
    assert v3.error("POST", "acls", {"principal": "User:a"}, status=400) == 400
