"""Calls about topics and their records.

Requests name three topics: "orders", on which users get rights, "other", on which nobody has any,
and "none", which does not exist.
"""

from collections.abc import Callable
from typing import Any

from riverrun.security.acls import AclOperation as Op
from tests.differential.batches import batch
from tests.differential.script import Script
from tests.differential.scripts.matrix.rights import on_cluster, on_topic
from tests.differential.scripts.matrix.table import Fields, GuardedCall, Stock, try_all
from tests.differential.scripts.requests import (
    fetch_fields,
    metadata_fields,
    new_topic,
    produce_fields,
    without_defaults,
)

NAMES = ("orders", "other", "none")
PREPARED = ("orders", "other", "doomed-1", "doomed-2", "doomed-3")
"""The topics that exist before the calls."""
CONFIG_TOPIC = 2
SOME_REPLICA = 7
WITH_IDS = {"metadata": 12, "delete_topics": 6}


def _produce(stock: Stock) -> Fields:
    return produce_fields([(stock.topic(name), [(0, batch([b"one"]))]) for name in NAMES])


def _fetch(stock: Stock, replica_id: int = -1) -> Fields:
    rows = [{"partition": 0, "fetch_offset": 0}]
    topics = [(stock.topic(name), rows) for name in NAMES]
    return fetch_fields(topics, replica_id=replica_id)


def _named(stock: Stock, key: str, **more: Any) -> list[Fields]:
    """A row for each topic."""
    return [{key: stock.name(name), **more} for name in NAMES]


def _list_offsets(stock: Stock) -> Fields:
    rows = [{"partition_index": 0, "timestamp": -1}]
    return {"replica_id": -1, "topics": _named(stock, "name", partitions=rows), "timeout": 5000}


def _epochs(stock: Stock, replica_id: int = -1) -> Fields:
    rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    return {"replica_id": replica_id, "topics": _named(stock, "topic", partitions=rows)}


def _metadata(stock: Stock) -> Fields:
    return metadata_fields([stock.name(name) for name in NAMES], operations=True)


def _metadata_by_id(stock: Stock) -> Fields:
    return metadata_fields([], ids=[stock.topic(name)[1] for name in NAMES])


def _all_metadata(stock: Stock) -> Fields:
    """Version 0 asks for all topics by an empty list, later versions by none."""
    return metadata_fields([] if stock.script.version("metadata") == 0 else None)


def _auto_create(name: str) -> Callable[[Stock], Fields]:
    return lambda stock: metadata_fields([stock.name(name)], auto_create=True)


def _is_created(response: Any) -> bool:
    """Kafka creates the topic after the response, so clients ask again."""
    return bool(response["topics"][0]["error_code"] in ("NONE", "TOPIC_AUTHORIZATION_FAILED"))


def _create(stock: Stock) -> Fields:
    topics = [new_topic(stock.name(name)) for name in ("new", "newer", "other")]
    return {"topics": topics, "timeout": 10000, "validate_only": True}


def _delete(name: str) -> Callable[[Stock], Fields]:
    def fields(stock: Stock) -> Fields:
        names = [stock.name(name), stock.name("other"), stock.name("none")]
        topics = [{"name": one, "topic_id": None} for one in names]
        return {"topic_names": names, "topics": topics, "timeout": 10000}

    return fields


def _delete_by_cluster_right(stock: Stock) -> Fields:
    """This right is about all topics."""
    names = [stock.name("doomed-3"), stock.name("none")]
    topics = [{"name": one, "topic_id": None} for one in names]
    return {"topic_names": names, "topics": topics, "timeout": 10000}


def _delete_by_id(stock: Stock) -> Fields:
    ids = [stock.topic(name)[1] for name in ("doomed-2", "other", "none")]
    return {"topics": [{"name": None, "topic_id": one} for one in ids], "timeout": 10000}


def _delete_records(stock: Stock) -> Fields:
    rows = [{"partition_index": 0, "offset": 0}]
    return {"topics": _named(stock, "name", partitions=rows), "timeout": 10000}


def _create_partitions(stock: Stock) -> Fields:
    topics = _named(stock, "name", count=2, assignments=None)
    return {"topics": topics, "timeout": 10000, "validate_only": True}


def _describe_partitions(stock: Stock) -> Fields:
    return {"topics": _named(stock, "name"), "response_partition_limit": 10, "cursor": None}


def _describe_all_partitions(stock: Stock) -> Fields:
    cursor = {"topic_name": stock.name(""), "partition_index": 0}
    return {"topics": [], "response_partition_limit": 2000, "cursor": cursor}


def _configs(key: str, value: Any) -> Callable[[Stock], Fields]:
    def fields(stock: Stock) -> Fields:
        rows = _named(stock, "resource_name", resource_type=CONFIG_TOPIC, **{key: value})
        return {"resources": rows, "validate_only": True}

    return fields


def own_topics(response: Any, prefix: str) -> Any:
    """Without the topics of other scripts, and without brokers."""
    topics = [row for row in response["topics"] if (row["name"] or prefix).startswith(prefix)]
    return without_brokers({**response, "topics": topics})


def without_brokers(response: Any) -> Any:
    hidden = ("brokers", "cluster_id", "controller_id")
    return {name: value for name, value in response.items() if name not in hidden}


RETENTION = {"name": "retention.ms", "value": "1000", "config_operation": 0}


def calls(script: Script) -> list[GuardedCall]:
    def own(response: Any) -> Any:
        return own_topics(response, script.topic(""))

    return [
        GuardedCall(api="produce", rights=(on_topic(Op.WRITE),), fields=_produce),
        GuardedCall(api="fetch", rights=(on_topic(Op.READ),), fields=_fetch),
        GuardedCall(
            api="describe_producers",
            rights=(on_topic(Op.READ),),
            fields=lambda stock: {"topics": _named(stock, "name", partition_indexes=[0])},
        ),
        GuardedCall(
            api="fetch",
            label="as a replica",
            rights=(on_cluster(Op.CLUSTER_ACTION),),
            fields=lambda stock: _fetch(stock, SOME_REPLICA),
        ),
        GuardedCall(
            api="offset_for_leader_epoch",
            label="as a replica",
            rights=(on_cluster(Op.CLUSTER_ACTION),),
            fields=lambda stock: _epochs(stock, SOME_REPLICA),
        ),
        GuardedCall(api="offset_for_leader_epoch", rights=(on_topic(Op.DESCRIBE),), fields=_epochs),
        GuardedCall(api="list_offsets", rights=(on_topic(Op.DESCRIBE),), fields=_list_offsets),
        GuardedCall(
            api="metadata",
            label="by name",
            rights=(on_topic(Op.DESCRIBE),),
            fields=_metadata,
            only=own,
        ),
        GuardedCall(
            api="metadata",
            label="by id",
            rights=(on_topic(Op.DESCRIBE),),
            fields=_metadata_by_id,
            only=own,
            since=WITH_IDS["metadata"],
        ),
        GuardedCall(
            api="metadata",
            label="all topics",
            rights=(on_topic(Op.DESCRIBE),),
            fields=_all_metadata,
            only=own,
        ),
        GuardedCall(
            api="describe_topic_partitions",
            rights=(on_topic(Op.DESCRIBE),),
            fields=_describe_partitions,
        ),
        GuardedCall(
            api="describe_topic_partitions",
            label="all topics",
            rights=(on_topic(Op.DESCRIBE),),
            fields=_describe_all_partitions,
            only=own,
        ),
        GuardedCall(
            api="metadata",
            label="create it",
            rights=(on_topic(Op.DESCRIBE, "auto-1"), on_topic(Op.CREATE, "auto-1")),
            fields=_auto_create("auto-1"),
            only=own,
            settled=_is_created,
        ),
        GuardedCall(
            api="metadata",
            label="create it",
            rights=(on_topic(Op.DESCRIBE, "auto-2"), on_cluster(Op.CREATE)),
            fields=_auto_create("auto-2"),
            only=own,
            settled=_is_created,
        ),
        GuardedCall(
            api="create_topics",
            rights=(on_topic(Op.CREATE, "new"),),
            fields=_create,
            only=without_defaults,
        ),
        GuardedCall(
            api="create_topics",
            rights=(on_cluster(Op.CREATE),),
            fields=_create,
            only=without_defaults,
        ),
        GuardedCall(
            api="create_topics",
            label="with settings",
            rights=(on_topic(Op.CREATE, "new"), on_topic(Op.DESCRIBE_CONFIGS, "new")),
            fields=_create,
            only=without_defaults,
            since=5,
        ),
        GuardedCall(api="delete_records", rights=(on_topic(Op.DELETE),), fields=_delete_records),
        GuardedCall(
            api="delete_topics",
            rights=(on_topic(Op.DELETE, "doomed-1"),),
            fields=_delete("doomed-1"),
        ),
        GuardedCall(
            api="delete_topics",
            label="by id",
            rights=(on_topic(Op.DELETE, "doomed-2"),),
            fields=_delete_by_id,
            since=WITH_IDS["delete_topics"],
        ),
        GuardedCall(
            api="delete_topics",
            rights=(on_cluster(Op.DELETE),),
            fields=_delete_by_cluster_right,
        ),
        GuardedCall(
            api="create_partitions", rights=(on_topic(Op.ALTER),), fields=_create_partitions
        ),
        GuardedCall(
            api="describe_configs",
            label="of topics",
            rights=(on_topic(Op.DESCRIBE_CONFIGS),),
            fields=_configs("configuration_keys", ["retention.ms"]),
        ),
        GuardedCall(
            api="alter_configs",
            label="of topics",
            rights=(on_topic(Op.ALTER_CONFIGS),),
            fields=_configs("configs", [RETENTION]),
        ),
        GuardedCall(
            api="incremental_alter_configs",
            label="of topics",
            rights=(on_topic(Op.ALTER_CONFIGS),),
            fields=_configs("configs", [RETENTION]),
        ),
    ]


def topics(script: Script) -> None:
    stock = Stock(script)
    stock.make_topics(*PREPARED)
    try_all(stock, calls(script))
