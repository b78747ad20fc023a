"""Delegation tokens, SCRAM users, access rules, and users without rights, on secured servers."""

from typing import Any

from tests.differential.script import Exchange, Script

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
USER = "User"
ALLOW = 3
TOPIC, GROUP, CLUSTER, USER_RESOURCE = 2, 3, 4, 7
LITERAL, PREFIXED = 3, 4
READ, DESCRIBE, CREATE_TOKENS, DESCRIBE_TOKENS = 3, 8, 13, 14
Row = dict[str, Any]


def _principal(name: str, kind: str = USER) -> Row:
    return {"principal_type": kind, "principal_name": name}


def _create(script: Script, label: str, *, on: str = "ann", **fields: Any) -> Row:
    made: Row = script.request(
        label,
        "create_delegation_token",
        {"renewers": [], "max_lifetime": -1, **fields},
        on=on,
        only=created_token,
    )
    return made


def created_token(response: Row) -> Row:
    """A created token with the lengths of its life instead of times."""
    begin = response["issue_timestamp"]
    if response["error_code"] != "NONE":
        return response
    ends = {name: response[name] - begin for name in ("expiry_timestamp", "max_timestamp")}
    return {**response, "issue_timestamp": 0, **{f"{name} after": ends[name] for name in ends}}


def _renew(script: Script, label: str, hmac: bytes, period_ms: int = -1, on: str = "ann") -> None:
    fields = {"hmac": hmac, "renew_period": period_ms}
    script.request(label, "renew_delegation_token", fields, on=on, settled=_is_known)


def _expire(script: Script, label: str, hmac: bytes, period_ms: int = -1, on: str = "ann") -> None:
    fields = {"hmac": hmac, "expiry_time_period": period_ms}
    script.request(label, "expire_delegation_token", fields, on=on, settled=_is_known)


def _is_known(response: Row) -> bool:
    """Kafka's controller knows a token shortly after it was created."""
    return bool(response["error_code"] != "DELEGATION_TOKEN_NOT_FOUND")


def _describe(
    script: Script, label: str, count: int, owners: list[Row] | None = None, on: str = "ann"
) -> None:
    script.request(
        label,
        "describe_delegation_token",
        {"owners": owners},
        on=on,
        settled=lambda response: len(response["tokens"]) == count,
    )


def tokens(script: Script) -> None:
    one = _create(script, "for oneself")
    two = _create(script, "with renewers", renewers=[_principal("bob"), _principal("bob")])
    short = _create(script, "short life", max_lifetime=HOUR_MS)
    long = _create(script, "long life", max_lifetime=30 * DAY_MS)
    zero = _create(script, "life of 0", max_lifetime=0)
    _describe(script, "own tokens", 5)
    _describe(script, "as a renewer", 1, on="bob")
    _describe(script, "as a stranger", 0, on="eve")
    _describe(script, "of one owner", 5, [_principal("ann")])
    _describe(script, "of a renewer", 1, [_principal("bob")])
    _describe(script, "of another type", 0, [_principal("ann", "Group")])
    _describe(script, "of no owners", 0, [])
    _renew(script, "by the owner", one["hmac"])
    _renew(script, "by a renewer", two["hmac"], on="bob")
    _renew(script, "by a stranger", two["hmac"], on="eve")
    _renew(script, "for 0 ms", one["hmac"], 0)
    _renew(script, "for an hour", one["hmac"], HOUR_MS)
    _expire(script, "by a stranger", two["hmac"], on="eve")
    _expire(script, "in an hour", one["hmac"], HOUR_MS)
    _expire(script, "in a month", one["hmac"], 30 * DAY_MS)
    for label, hmac in {"unknown": bytes(64), "too short": b"x", "empty": b""}.items():
        script.request(
            f"{label} secret",
            "renew_delegation_token",
            {"hmac": hmac, "renew_period": -1},
            on="ann",
        )
        script.request(
            f"{label} secret",
            "expire_delegation_token",
            {"hmac": hmac, "expiry_time_period": -1},
            on="ann",
        )
    _expire(script, "at once, by a renewer", two["hmac"], -7, on="bob")
    for token in (one, short, long, zero):
        _expire(script, "at once", token["hmac"])
    _describe(script, "after all are gone", 0)


def _other_requests(hmac: bytes) -> dict[str, Row]:
    return {
        "renew_delegation_token": {"hmac": hmac, "renew_period": -1},
        "expire_delegation_token": {"hmac": hmac, "expiry_time_period": -1},
        "describe_delegation_token": {"owners": None},
    }


def tokens_refused(script: Script) -> None:
    _create(script, "without a login", on="main")
    _create(script, "a renewer that is no user", renewers=[_principal("admins", "Group")])
    _create(script, "a renewer without a type", renewers=[_principal("bob", "")])
    for api, fields in _other_requests(b"x").items():
        script.request("without a login", api, fields)
    made = _create(script, "good")
    _describe(script, "it is there", 1)
    _log_in(script, "a wrong secret", "wrong", made["token_id"], b"wrong")
    _log_in(script, "an unknown token", "unknown", "no-such-token", made["hmac"])
    _log_in(script, "a token", "token", made["token_id"], made["hmac"])
    script.request("the owner's rights", "describe_cluster", {}, on="token", only=_code)
    _create(script, "with a token", on="token")
    _create(script, "with a token, bad renewer", renewers=[_principal("x", "Y")], on="token")
    for api, fields in _other_requests(made["hmac"]).items():
        script.request("with a token", api, fields, on="token")
    _expire(script, "at once", made["hmac"])
    _describe(script, "it is gone", 0)
    script.request("still logged in", "describe_cluster", {}, on="token", only=_code)
    _log_in(script, "a removed token", "removed", made["token_id"], made["hmac"])


def _log_in(script: Script, label: str, on: str, token_id: str, hmac: bytes) -> None:
    """A session ends with its token at the latest."""
    last = script.log_in_by_token(on, token_id, hmac)
    is_limited = 0 < last["session_lifetime"] <= DAY_MS
    answer = {"error_code": last["error_code"], "is_limited": is_limited}
    script.exchanges.append(Exchange(f"log in with {label}", answer))


def tokens_for_others(script: Script) -> None:
    """The owner is a field since version 3; before, it is ignored."""
    owner = {"owner_principal_type": USER, "owner_principal_name": "bob"}
    if not script.at_least("create_delegation_token", 3):
        return
    _create(script, "without the right", on="eve", **owner)
    group = {"owner_principal_type": "Group", "owner_principal_name": "bob"}
    _create(script, "of another type", on="eve", **group)
    _create(script, "oneself by name", owner_principal_type=USER, owner_principal_name="ann")
    rights = [
        _rule(USER_RESOURCE, "User:bob", "User:eve", CREATE_TOKENS),
        _rule(USER_RESOURCE, "User:ann", "User:eve", DESCRIBE_TOKENS),
    ]
    script.quietly("create_acls", {"creations": rights}, version=3)
    made = script.request(
        "with the right",
        "create_delegation_token",
        {"renewers": [], "max_lifetime": -1, **owner},
        on="eve",
        only=created_token,
        settled=lambda response: response["error_code"] == "NONE",
    )
    _describe(script, "the owner's and the visible ones", 2, on="eve")
    _describe(script, "as the owner", 1, on="bob")
    _describe(script, "of the creator", 1, [_principal("eve")], on="eve")
    _renew(script, "by the creator", made["hmac"], on="eve")
    _expire(script, "by the creator", made["hmac"], on="eve")
    _expire(script, "by the owner", made["hmac"], on="bob")
    script.quietly("delete_acls", {"filters": [_filter(principal_filter="User:eve")]}, version=3)
    tokens = script.quietly_on("ann", "describe_delegation_token", {"owners": None})["tokens"]
    for token in tokens:
        _expire(script, "at once", token["hmac"])


def _code(response: Row) -> Row:
    return {"error_code": response["error_code"]}


def _rule(kind: int, name: str, principal: str, operation: int, **fields: Any) -> Row:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": ALLOW,
        **fields,
    }


def _filter(**fields: Any) -> Row:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **fields,
    }


def rules(script: Script) -> None:
    user, topic = f"User:{script.topic('user')}", script.topic("orders")
    good = {
        "literal": _rule(TOPIC, topic, user, READ),
        "again": _rule(TOPIC, topic, user, READ),
        "prefixed": _rule(TOPIC, topic[:-2], user, DESCRIBE, resource_pattern_type=PREFIXED),
        "from one host": _rule(TOPIC, topic, user, DESCRIBE, host="10.1.2.3"),
        "denied": _rule(GROUP, topic, user, READ, permission_type=2),
        "all operations": _rule(TOPIC, "*", user, 2),
    }
    bad = {
        "any resource": _rule(1, topic, user, READ),
        "unknown resource": _rule(0, topic, user, READ),
        "resource 99": _rule(99, topic, user, READ),
        "empty name": _rule(TOPIC, "", user, READ),
        "pattern any": _rule(TOPIC, topic, user, READ, resource_pattern_type=1),
        "pattern match": _rule(TOPIC, topic, user, READ, resource_pattern_type=2),
        "any operation": _rule(TOPIC, topic, user, 1),
        "unknown operation": _rule(TOPIC, topic, user, 0),
        "any permission": _rule(TOPIC, topic, user, READ, permission_type=1),
        "no principal type": _rule(TOPIC, topic, "someone", READ),
        "empty principal": _rule(TOPIC, topic, "", READ),
        "empty host": _rule(TOPIC, topic, user, READ, host=""),
        "another cluster": _rule(CLUSTER, "another", user, DESCRIBE),
        "operation of clusters": _rule(TOPIC, topic, user, 9),
    }
    for label, rule in {**good, **bad}.items():
        script.request(label, "create_acls", {"creations": [rule]})
    script.request("several", "create_acls", {"creations": [good["literal"], bad["empty name"]]})
    script.request("none", "create_acls", {"creations": []})
    filters: dict[str, Row] = {
        "all of the user": {},
        "one topic, literal": {"resource_name_filter": topic, "pattern_type_filter": LITERAL},
        "one topic, any": {"resource_type_filter": TOPIC, "resource_name_filter": topic},
        "one topic, match": {
            "resource_type_filter": TOPIC,
            "resource_name_filter": topic,
            "pattern_type_filter": 2,
        },
        "operation": {"operation": READ},
        "host": {"host_filter": "10.1.2.3"},
        "denials": {"permission_type": 2},
        "nothing": {"resource_name_filter": script.topic("nothing")},
        "unknown pattern": {"pattern_type_filter": 0},
        "unknown operation": {"operation": 0},
        "unknown resource": {"resource_type_filter": 0},
        "unknown permission": {"permission_type": 0},
    }
    for label, fields in filters.items():
        wanted = _filter(principal_filter=user, **fields)
        script.request(label, "describe_acls", wanted)
    removals: dict[str, Row] = {
        "nothing": {"resource_name_filter": script.topic("nothing")},
        "unknown operation": {"operation": 0},
        "of one host": {"host_filter": "10.1.2.3"},
        "matching a topic": {
            "resource_type_filter": TOPIC,
            "resource_name_filter": topic,
            "pattern_type_filter": 2,
        },
        "the rest": {},
    }
    for label, fields in removals.items():
        wanted = _filter(principal_filter=user, **fields)
        script.request(label, "delete_acls", {"filters": [wanted]})
    script.request("after all are gone", "describe_acls", _filter(principal_filter=user))


def _upsert(name: str, **fields: Any) -> Row:
    salted = {"salt": bytes(range(24)), "salted_password": bytes(32)}
    return {"name": name, "mechanism": 1, "iterations": 4096, **salted, **fields}


def scram_users(script: Script) -> None:
    name, api = script.topic("user"), "alter_user_scram_credentials"
    both = [_upsert(name), _upsert(name, mechanism=2, salted_password=bytes(64))]
    for label, rows in {
        "two mechanisms": both,
        "changed": [_upsert(name, iterations=16384)],
        "too few iterations": [_upsert(name, iterations=4095)],
        "too many iterations": [_upsert(name, iterations=16385)],
        "unknown mechanism": [_upsert(name, mechanism=3)],
        "mechanism 0": [_upsert(name, mechanism=0)],
        "empty name": [_upsert("")],
        "a mechanism twice": [_upsert(name), _upsert(name)],
        "one good, one bad": [_upsert(script.topic("good")), _upsert(name, iterations=1)],
    }.items():
        script.request(label, api, {"deletions": [], "upsertions": rows})
    for label, rows in {
        "nobody": [{"name": script.topic("nobody"), "mechanism": 1}],
        "unknown mechanism": [{"name": name, "mechanism": 3}],
        "empty name": [{"name": "", "mechanism": 1}],
        "twice": [{"name": name, "mechanism": 1}, {"name": name, "mechanism": 1}],
    }.items():
        script.request(f"delete {label}", api, {"deletions": rows, "upsertions": []})
    fields = {"deletions": [{"name": name, "mechanism": 1}], "upsertions": [_upsert(name)]}
    script.request("deleted and set", api, fields)
    nobody = script.topic("nobody")
    for label, names in {
        "one": [name],
        "unknown": [nobody],
        "twice": [name, name],
        "empty": [""],
        "several": [name, nobody, script.topic("good")],
    }.items():
        wanted = {"users": [{"name": one} for one in names]}
        script.request(label, "describe_user_scram_credentials", wanted)
    rows = [{"name": name, "mechanism": 1}, {"name": name, "mechanism": 2}]
    rows.append({"name": script.topic("good"), "mechanism": 1})
    script.request("delete all", api, {"deletions": rows, "upsertions": []})


def without_rights(script: Script) -> None:
    """What a user without any right gets."""
    topic, group = script.topic("orders"), script.topic("group")
    script.make_topic(topic)
    names = {"topics": [{"name": topic}, {"name": script.topic("none")}]}
    requests: dict[str, Row] = {
        "metadata": {**names, "allow_auto_topic_creation": False},
        "create_acls": {"creations": [_rule(TOPIC, topic, "User:eve", READ)]},
        "describe_acls": _filter(),
        "delete_acls": {"filters": [_filter(principal_filter="User:eve")]},
        "describe_client_quotas": {"components": [], "strict": False},
        "alter_client_quotas": {"entries": [], "validate_only": True},
        "describe_user_scram_credentials": {"users": None},
        "alter_user_scram_credentials": {"deletions": [], "upsertions": [_upsert("eve")]},
        "create_partitions": {
            "topics": [{"name": topic, "count": 2, "assignments": None}],
            "timeout": 1000,
            "validate_only": True,
        },
        "list_groups": {},
        "describe_groups": {"groups": [group]},
        "delete_groups": {"groups_names": [group]},
        "offset_delete": {"group_id": group, "topics": []},
        "describe_producers": {"topics": [{"name": topic, "partition_indexes": [0]}]},
        "list_partition_reassignments": {"timeout": 1000, "topics": None},
        "describe_topic_partitions": {**names, "response_partition_limit": 10},
    }
    for api, fields in requests.items():
        script.request("no rights", api, fields, on="eve", only=_without_brokers)


def _without_brokers(response: Row) -> Row:
    hidden = ("brokers", "cluster_id", "controller_id")
    return {name: value for name, value in response.items() if name not in hidden}


SCRIPTS = {
    "tokens": tokens,
    "tokens-refused": tokens_refused,
    "tokens-for-others": tokens_for_others,
    "rules": rules,
    "scram-users": scram_users,
    "without-rights": without_rights,
}
