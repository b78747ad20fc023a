"""Calls about groups and their offsets.

Users get rights on "group", which has offsets of the topics "orders" and "other", and never on
"other-group".
"""

from collections.abc import Callable
from typing import Any

from riverrun.security.acls import AclOperation as Op
from tests.differential.script import Script
from tests.differential.scripts.matrix.rights import on_cluster, on_group, on_topic
from tests.differential.scripts.matrix.table import Fields, GuardedCall, Stock, try_all
from tests.differential.scripts.members import PROTOCOLS
from tests.differential.scripts.requests import (
    commit_fields,
    offset_fetch_fields,
    sorted_offsets,
)
from tests.processes import until

GROUPS = ("group", "other-group")
TOPICS = ("orders", "other", "none")
STRANGER = "nobody"
CONFIG_GROUP = 32
MEMBER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
LEAVE = -1


def _member(**more: Any) -> Callable[[Stock], Fields]:
    """A request of a member that the group does not have."""

    def fields(stock: Stock) -> Fields:
        return {
            "group_id": stock.name("group"),
            "generation_id": 1,
            "member_id": STRANGER,
            "members": [{"member_id": STRANGER, "group_instance_id": None}],
            **more,
        }

    return fields


_JOIN = _member(
    session_timeout=30000,
    rebalance_timeout=30000,
    protocol_type="consumer",
    protocols=[{"name": name, "metadata": data} for name, data in PROTOCOLS.items()],
)
_SYNC = _member(protocol_type="consumer", protocol_name="range", assignments=[])


def _commit(stock: Stock) -> Fields:
    rows = [(stock.topic(name), 0, 5, "note") for name in TOPICS]
    return commit_fields(stock.name("group"), rows)


def _offsets(stock: Stock) -> Fields:
    wanted = [(stock.topic(name), [0]) for name in TOPICS]
    return offset_fetch_fields([(stock.name(group), wanted) for group in GROUPS])


def _all_offsets(stock: Stock) -> Fields:
    return offset_fetch_fields([(stock.name(group), None) for group in GROUPS])


def _offset_delete(stock: Stock) -> Fields:
    rows = [{"partition_index": 0}]
    topics = [{"name": stock.name(name), "partitions": rows} for name in TOPICS]
    return {"group_id": stock.name("doomed-1"), "topics": topics}


def _configs(key: str, value: Any) -> Callable[[Stock], Fields]:
    def fields(stock: Stock) -> Fields:
        rows = [
            {"resource_type": CONFIG_GROUP, "resource_name": stock.name(name), key: value}
            for name in GROUPS
        ]
        return {"resources": rows, "validate_only": True}

    return fields


def _heartbeat(*topics: str) -> Callable[[Stock], Fields]:
    """Of an unknown member, which changes nothing."""

    def fields(stock: Stock) -> Fields:
        return {
            "group_id": stock.name("consumers"),
            "member_id": STRANGER,
            "member_epoch": 3,
            "rebalance_timeout": 30000,
            "subscribed_topic_names": [stock.name(name) for name in topics] if topics else None,
            "topic_partitions": [],
        }

    return fields


def _sessions(stock: Stock) -> Fields:
    groups = [stock.name(name) for name in ("consumers", *GROUPS)]
    return {"group_ids": groups, "include_authorized_operations": True}


def _without_epochs(response: Any) -> Any:
    """The epochs of a group and its members differ, and are not what this is about."""
    for group in response["groups"]:
        for row in (group, *group["members"]):
            for name in ("group_epoch", "assignment_epoch", "member_epoch"):
                row.pop(name, None)
            row.pop("subscribed_topic_regex", None)
    return response


SESSION = {"name": "consumer.session.timeout.ms", "value": "50000", "config_operation": 0}


def calls(script: Script) -> list[GuardedCall]:
    def own_groups(response: Any) -> Any:
        """Without the groups of other scripts."""
        mine = [row for row in response["groups"] if row["group_id"].startswith(script.topic(""))]
        return {**response, "groups": mine}

    read, describe = (on_group(Op.READ),), (on_group(Op.DESCRIBE),)
    found = {"key_type": 0}
    return [
        GuardedCall(api="join_group", rights=read, fields=_JOIN),
        GuardedCall(api="sync_group", rights=read, fields=_SYNC),
        GuardedCall(api="heartbeat", rights=read, fields=_member()),
        GuardedCall(api="leave_group", rights=read, fields=_member()),
        GuardedCall(
            api="offset_commit",
            rights=(on_group(Op.READ), on_topic(Op.READ)),
            fields=_commit,
        ),
        GuardedCall(
            api="offset_fetch",
            rights=(on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
            fields=_offsets,
            only=sorted_offsets,
        ),
        GuardedCall(
            api="offset_fetch",
            label="all topics",
            rights=(on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
            fields=_all_offsets,
            only=sorted_offsets,
            since=2,
        ),
        GuardedCall(
            api="find_coordinator",
            label="of groups",
            rights=describe,
            fields=lambda stock: {
                **found,
                "key": stock.name("group"),
                "coordinator_keys": [stock.name(name) for name in GROUPS],
            },
        ),
        GuardedCall(
            api="describe_groups",
            rights=describe,
            fields=lambda stock: {
                "groups": [stock.name(name) for name in (*GROUPS, "none")],
                "include_authorized_operations": True,
            },
        ),
        GuardedCall(api="list_groups", rights=describe, fields=lambda stock: {}, only=own_groups),
        GuardedCall(
            api="list_groups",
            rights=(on_cluster(Op.DESCRIBE),),
            fields=lambda stock: {},
            only=own_groups,
        ),
        GuardedCall(
            api="offset_delete",
            rights=(on_group(Op.DELETE, "doomed-1"), on_topic(Op.READ)),
            fields=_offset_delete,
        ),
        GuardedCall(
            api="delete_groups",
            rights=(on_group(Op.DELETE, "doomed-2"),),
            fields=lambda stock: {
                "groups_names": [stock.name(name) for name in ("doomed-2", "other-group", "none")]
            },
        ),
        GuardedCall(
            api="describe_configs",
            label="of groups",
            rights=(on_group(Op.DESCRIBE_CONFIGS),),
            fields=_configs("configuration_keys", ["consumer.session.timeout.ms"]),
        ),
        *(
            GuardedCall(
                api=api,
                label="of groups",
                rights=(on_group(Op.ALTER_CONFIGS),),
                fields=_configs("configs", [SESSION]),
            )
            for api in ("alter_configs", "incremental_alter_configs")
        ),
        GuardedCall(
            api="consumer_group_heartbeat",
            rights=(on_group(Op.READ, "consumers"),),
            fields=_heartbeat(),
        ),
        GuardedCall(
            api="consumer_group_heartbeat",
            label="with a topic",
            rights=(on_group(Op.READ, "consumers"), on_topic(Op.DESCRIBE)),
            fields=_heartbeat("orders"),
        ),
        GuardedCall(
            api="consumer_group_describe",
            rights=(on_group(Op.DESCRIBE, "consumers"), on_topic(Op.DESCRIBE)),
            fields=_sessions,
            only=_without_epochs,
        ),
    ]


def _prepare(stock: Stock) -> None:
    """Groups with offsets, and one with a member of the consumer protocol."""
    script = stock.script
    script.wait_for_coordinator()
    for group in ("group", "other-group", "doomed-1", "doomed-2"):
        rows = [(stock.topic(name), 0, 3, "note") for name in ("orders", "other")]
        done = script.quietly("offset_commit", commit_fields(stock.name(group), rows), version=9)
        assert done["topics"][0]["partitions"][0]["error_code"] == "NONE", done
    until(lambda: _beat(stock, 0)["error_code"] == "NONE", seconds=15, what="a member")


def _beat(stock: Stock, epoch: int) -> Any:
    fields = {
        "group_id": stock.name("consumers"),
        "member_id": MEMBER_ID,
        "member_epoch": epoch,
        "rebalance_timeout": 30000,
        "subscribed_topic_names": [stock.name("orders")],
        "topic_partitions": [],
    }
    return stock.script.quietly("consumer_group_heartbeat", fields, version=1)


def groups(script: Script) -> None:
    stock = Stock(script)
    stock.make_topics("orders", "other")
    _prepare(stock)
    try_all(stock, calls(script))
    _beat(stock, LEAVE)
