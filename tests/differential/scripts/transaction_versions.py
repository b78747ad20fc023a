"""Transactions in every version of their APIs, and with each level of transaction.version.

The level of the feature tells clients which versions of the APIs to use. The versions that they
use decide the rules.
"""

from collections.abc import Callable
from typing import Any

from tests.differential.script import Script, versions
from tests.differential.scripts.requests import produce_fields
from tests.differential.scripts.transactional_data import data
from tests.differential.scripts.transactions import (
    BROKERS_SINCE,
    VERSION_1_NEWEST,
    Producer,
    is_settled,
)

FEATURE = "transaction.version"
LEVELS = {"oldest": 1, "flexible": 0, "newest": 1}
NEWEST_LEVEL = 2
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
VERSION_2_END = 5


def every_version(script: Script) -> None:
    """A transaction, and a fenced one, in each version of each API for clients."""
    if script.era != "newest":
        return
    script.wait_for_coordinator()
    topic = script.topic("t")
    script.make_topic(topic, partitions=1)
    producer = Producer.start(script, "app")
    producer.init("start")

    def ask(label: str, api: str, version: int, fields: dict[str, Any]) -> Any:
        return script.request(label, api, fields, version=version, settled=is_settled)

    def both(api: str, version: int, make: Callable[[int], dict[str, Any]]) -> None:
        ask("good", api, version, make(producer.epoch))
        ask("a later epoch", api, version, make(producer.epoch + 1))

    for version in versions("add_partitions_to_txn"):
        if version < BROKERS_SINCE:
            both("add_partitions_to_txn", version, lambda epoch: _partition(producer, topic, epoch))
            producer.end("end", committed=True, version=VERSION_1_NEWEST["end_txn"])
    group = script.topic("group")
    for version in versions("add_offsets_to_txn"):
        both("add_offsets_to_txn", version, lambda epoch: _group(producer, group, epoch))
        producer.end("end", committed=True, version=VERSION_1_NEWEST["end_txn"])
    for version in versions("txn_offset_commit"):
        producer.add_offsets("a group", group)
        both("txn_offset_commit", version, lambda epoch: _offset(producer, group, topic, epoch))
        producer.end("end", committed=False, version=VERSION_1_NEWEST["end_txn"])
    for version in versions("end_txn"):
        producer.add("a partition", (topic, [0]))
        producer.end("a later epoch", committed=True, version=version, producer_epoch=30000)
        producer.end("good", committed=True, version=version)


def features(script: Script) -> None:
    """Lower the feature, use both generations of the APIs, and raise it."""
    level = LEVELS[script.era]
    _refused_updates(script)
    _update(script, "validated only", level, UNSAFE_DOWNGRADE, validate_only=True)
    _finalised(script, "as before", NEWEST_LEVEL)
    _update(script, "lowered", level, SAFE_DOWNGRADE)
    _update(script, "lowered again", level, SAFE_DOWNGRADE)
    _finalised(script, "lowered", level)
    name = script.topic("t")
    topic = (name, script.make_topic(name, partitions=1))
    producer = Producer.start(script, "app")
    producer.init("start")
    producer.add("a partition", (name, [0]))
    fields = produce_fields([(topic, [(0, data(producer, 0))])], -1, producer.name)
    script.request("version 1", "produce", fields, version=11)
    producer.end("version 1", committed=True)
    producer.describe("version 1", "CompleteCommit")
    producer.add("a partition for version 2", (name, [0]))
    producer.end("version 2", committed=True, version=VERSION_2_END)
    producer.describe("version 2", "CompleteCommit")
    _update(script, "raised", NEWEST_LEVEL, UPGRADE)
    _finalised(script, "raised", NEWEST_LEVEL)


def _refused_updates(script: Script) -> None:
    _update(script, "too high", NEWEST_LEVEL + 1, UPGRADE)
    _update(script, "negative", -1, UPGRADE)
    _update(script, "lowered without leave", 1, UPGRADE)
    _update(script, "a downgrade upwards", NEWEST_LEVEL + 1, SAFE_DOWNGRADE)
    _update(script, "an unknown kind", 1, 9)
    _update(script, "an unknown feature", 1, UPGRADE, feature="strange.version")


def _update(script: Script, label: str, level: int, kind: int, **more: Any) -> None:
    row = {
        "feature": more.pop("feature", FEATURE),
        "max_version_level": level,
        "allow_downgrade": kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE),
        "upgrade_type": kind,
    }
    version = max(script.version("update_features"), 1)
    script.request(label, "update_features", {"feature_updates": [row], **more}, version=version)


def _finalised(script: Script, label: str, level: int) -> None:
    """The level that ApiVersions gives, once the broker knows it."""

    def only(response: Any) -> Any:
        return [row for row in response["finalized_features"] if row["name"] == FEATURE]

    software = {"client_software_name": "plain", "client_software_version": "1.0"}

    def has_level(response: Any) -> bool:
        return [row["max_version_level"] for row in only(response)] == ([level] if level else [])

    version = max(script.version("api_versions"), 3)
    script.request(label, "api_versions", software, version=version, only=only, settled=has_level)


def _partition(producer: Producer, topic: str, epoch: int) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": producer.name,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
    }


def _group(producer: Producer, group: str, epoch: int) -> dict[str, Any]:
    return {
        "transactional_id": producer.name,
        "producer_id": producer.producer_id,
        "producer_epoch": epoch,
        "group_id": group,
    }


def _offset(producer: Producer, group: str, topic: str, epoch: int) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    return {
        **_group(producer, group, epoch),
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
    }


SCRIPTS: dict[str, Callable[[Script], None]] = {
    "transactions-every-version": every_version,
    "transactions-features": features,
}
