"""DescribeNode shows the members of groups to users that may describe the group.

The server is not that of ``test_private_rights``, because groups create an internal topic.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from riverrun.security.acls import AclOperation
from riverrun.wire.apis import ApiKey
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from tests.differential.run import SETTINGS
from tests.differential.script import SETTLE_SECONDS_MAX, Script
from tests.differential.scripts.matrix.rights import Rule, Rulebook, on_cluster, on_group
from tests.differential.secured import serve_secured
from tests.processes import until
from tests.security.test_private_rights import ask

DESCRIBE = on_cluster(AclOperation.DESCRIBE)


def test_members_of_groups_need_the_right_to_describe_the_group(tmp_path: Path) -> None:
    request = DescribeNodeRequest(subject="connections", query='{"members":true}')
    with serve_secured(tmp_path / "node", SETTINGS, "riverrun") as own:
        script = Script(own.address, "members", "newest")
        for group in ("hidden", "shown"):
            until(
                partial(_has_joined, script, group),
                seconds=SETTLE_SECONDS_MAX,
                what=f"join {group}",
            )
        shown = Rule(on_group(AclOperation.DESCRIBE, "shown"))
        Rulebook(script).replace({"ann": [Rule(DESCRIBE)], "bob": [Rule(DESCRIBE), shown]})
        script.close()
        members = {
            user: json.loads(ask(own, user, ApiKey.DESCRIBE_NODE, request).content)["members"]
            for user in ("ann", "bob")
        }
    assert members["ann"] == []
    assert [one["group"] for one in members["bob"]] == ["shown"]


def _has_joined(script: Script, group: str) -> bool:
    script.quietly("find_coordinator", {"key_type": 0, "coordinator_keys": [group]}, version=6)
    request = {
        "group_id": group,
        "member_id": "member",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    response = script.quietly("consumer_group_heartbeat", request, version=1)
    return bool(response["error_code"] == "NONE")
