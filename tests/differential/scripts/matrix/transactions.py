"""Calls about producers and transactions.

Users get rights on the transactional id "id", on the group "group" and on the topic "orders".
"""

from collections.abc import Callable
from typing import Any

from riverrun.security.acls import AclOperation as Op
from tests.differential.batches import TRANSACTIONAL, batch
from tests.differential.script import Script
from tests.differential.scripts.matrix.rights import on_cluster, on_group, on_id, on_topic
from tests.differential.scripts.matrix.table import Fields, GuardedCall, Stock, try_all
from tests.differential.scripts.requests import produce_fields
from tests.differential.scripts.transactions import BROKERS_SINCE, Producer, is_settled

TOPICS = ("orders", "other", "none")
IDS = ("id", "other-id", "none")
NO_PRODUCER = 1 << 40
"""An id that no server has assigned yet."""


def _producer(prefix: str = "", **more: Any) -> Callable[[Stock], Fields]:
    def fields(stock: Stock) -> Fields:
        producer_id, epoch = stock.producer
        return {
            f"{prefix}transactional_id": stock.name("id"),
            f"{prefix}producer_id": producer_id,
            f"{prefix}producer_epoch": epoch,
            **more,
        }

    return fields


def _init(stock: Stock) -> Fields:
    return {"transactional_id": stock.name("fresh-id"), "transaction_timeout": 60000}


def _init_without_id(stock: Stock) -> Fields:
    return {"transactional_id": None, "transaction_timeout": 60000}


def _produce(sequence: int, *topics: str) -> Callable[[Stock], Fields]:
    def fields(stock: Stock) -> Fields:
        producer_id, epoch = stock.producer
        data = batch(
            [b"one"],
            attributes=TRANSACTIONAL,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        rows = [(stock.topic(name), [(0, data)]) for name in topics]
        return produce_fields(rows, transactional_id=stock.name("id"))

    return fields


def _add_partitions(*topics: str) -> Callable[[Stock], Fields]:
    def fields(stock: Stock) -> Fields:
        rows = [{"name": stock.name(name), "partitions": [0]} for name in topics]
        return {**_producer("v3_and_below_")(stock), "v3_and_below_topics": rows}

    return fields


def _verify_partitions(stock: Stock) -> Fields:
    """The request of a broker."""
    rows = [{"name": stock.name("orders"), "partitions": [0]}]
    one = {**_producer()(stock), "verify_only": True, "topics": rows}
    return {"transactions": [one]}


def _add_offsets(stock: Stock) -> Fields:
    return {**_producer()(stock), "group_id": stock.name("group")}


def _commit(stock: Stock) -> Fields:
    row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"}
    topics = [{"name": stock.name(name), "partitions": [row]} for name in TOPICS]
    fields = _producer(generation_id=-1, member_id="", group_instance_id=None)(stock)
    return {**fields, "group_id": stock.name("group"), "topics": topics}


def _markers(stock: Stock) -> Fields:
    """Markers of a topic that does not exist."""
    marker = {
        "producer_id": NO_PRODUCER,
        "producer_epoch": 0,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "transaction_version": 0,
        "topics": [{"name": stock.name("none"), "partition_indexes": [0]}],
    }
    return {"markers": [marker]}


def calls(script: Script) -> list[GuardedCall]:
    def own(response: Any) -> Any:
        """Without the transactions of other scripts."""
        rows = response["transaction_states"]
        mine = [row for row in rows if row["transactional_id"].startswith(script.topic(""))]
        return {**response, "transaction_states": mine}

    write, describe = (on_id(Op.WRITE),), (on_id(Op.DESCRIBE),)
    data = (on_id(Op.WRITE), on_topic(Op.WRITE))
    return [
        GuardedCall(
            api="init_producer_id",
            rights=(on_id(Op.WRITE, "fresh-id"),),
            fields=_init,
            settled=is_settled,
        ),
        GuardedCall(
            api="init_producer_id",
            label="without an id",
            rights=(on_cluster(Op.IDEMPOTENT_WRITE),),
            fields=_init_without_id,
        ),
        GuardedCall(
            api="init_producer_id",
            label="without an id",
            rights=(on_topic(Op.WRITE, "any"),),
            fields=_init_without_id,
        ),
        GuardedCall(
            api="add_partitions_to_txn",
            label="and others",
            rights=data,
            fields=_add_partitions(*TOPICS),
            until=BROKERS_SINCE - 1,
        ),
        GuardedCall(
            api="add_partitions_to_txn",
            rights=data,
            fields=_add_partitions("orders"),
            until=BROKERS_SINCE - 1,
        ),
        GuardedCall(api="produce", rights=data, fields=_produce(0, "orders")),
        GuardedCall(api="produce", label="and others", rights=data, fields=_produce(1, *TOPICS)),
        GuardedCall(
            api="add_partitions_to_txn",
            label="by a broker",
            rights=(on_cluster(Op.CLUSTER_ACTION),),
            fields=_verify_partitions,
            since=BROKERS_SINCE,
        ),
        GuardedCall(
            api="add_offsets_to_txn",
            rights=(on_id(Op.WRITE), on_group(Op.READ)),
            fields=_add_offsets,
        ),
        GuardedCall(
            api="txn_offset_commit",
            rights=(on_id(Op.WRITE), on_group(Op.READ), on_topic(Op.READ)),
            fields=_commit,
        ),
        GuardedCall(
            api="describe_transactions",
            rights=(on_id(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
            fields=lambda stock: {"transactional_ids": [stock.name(name) for name in IDS]},
        ),
        GuardedCall(api="list_transactions", rights=describe, fields=lambda stock: {}, only=own),
        GuardedCall(
            api="find_coordinator",
            label="of ids",
            rights=describe,
            fields=lambda stock: {
                "key_type": 1,
                "key": stock.name("id"),
                "coordinator_keys": [stock.name(name) for name in IDS],
            },
            since=1,
        ),
        GuardedCall(api="end_txn", rights=write, fields=_producer(committed=False)),
        GuardedCall(api="write_txn_markers", rights=(on_cluster(Op.ALTER),), fields=_markers),
        GuardedCall(
            api="write_txn_markers", rights=(on_cluster(Op.CLUSTER_ACTION),), fields=_markers
        ),
    ]


def transactions(script: Script) -> None:
    stock = Stock(script)
    stock.make_topics("orders", "other")
    script.wait_for_coordinator()
    for name in ("other-id", "id"):
        producer = Producer.start(script, name)
        producer.init(name)
        stock.producer = (producer.producer_id, producer.epoch)
    try_all(stock, calls(script))
