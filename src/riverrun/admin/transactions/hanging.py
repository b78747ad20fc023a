"""Hanging transactions: open in a partition, and no coordinator will end them.

A leader reports a transaction as open, but no coordinator has an open transaction of its producer
that includes the partition. A transaction can end between the two questions, so the leaders are
asked again before anything is reported.

A transaction whose coordinator did not answer looks the same, and its abort would tear it. So the
search fails unless the leader of every partition of ``__transaction_state`` has answered, no
leadership changed meanwhile, and the user may describe any transactional id.

A rule that denies some ids cannot be seen from here. Coordinators do not list them, so the cause
that no coordinator knows a producer names this possibility too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from riverrun.admin.cluster.replica_lag import NO_LEADER
from riverrun.admin.requests import NotFound, ask_each, check, find_topic
from riverrun.admin.transactions.admin import (
    OPEN_STATES,
    CoordinatedTransaction,
    HeldPartition,
    PartitionTransaction,
    Silent,
    held_partitions,
    list_transactions,
    open_in,
)
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.model.names import TRANSACTIONS_TOPIC
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from riverrun.wire.messages.write_txn_markers_response import WriteTxnMarkersResponse

NO_SUCH_ID = "?riverrun-transactions-hanging"
"""A user who may describe it has the right on all ids, except those that a rule denies."""


class CoordinatorsUnknown(Exception):
    """Not all coordinators have answered, so no transaction can be called hanging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    open: PartitionTransaction
    held: HeldPartition
    cause: str

    def age_seconds(self, now_ms: int) -> float:
        """Since its last record."""
        return max(0, now_ms - self.open.last_timestamp_ms) / 1000

    def described(self, now_ms: int) -> dict[str, object]:
        return {
            **self.held.described(),
            "producer_id": self.open.producer_id,
            "producer_epoch": self.open.producer_epoch,
            "age_seconds": self.age_seconds(now_ms),
            "cause": self.cause,
        }


async def find_hanging(
    pool: ConnectionPool,
    *,
    topic: str | None = None,
    broker: int | None = None,
    silent: Silent = lambda node: None,
) -> list[HangingTransaction]:
    """Look at all partitions, those of one topic, or those that one broker leads. ``silent``
    receives leaders that did not report. Raises CoordinatorsUnknown."""
    places = await _places(pool, topic, broker)
    candidates = await open_in(pool, places, silent)
    if not candidates:
        return []
    known = await all_transactions(pool)
    suspects = {each: cause for each in candidates if (cause := cause_of(each, known)) is not None}
    again = {_identity(each) for each in await open_in(pool, [each.partition for each in suspects])}
    left = [each for each in suspects if _identity(each) in again]
    starts: dict[TopicPartition, int] = {}
    for each in left:
        starts.setdefault(each.partition, each.start_offset)
    rows = await held_partitions(pool, list(starts), starts)
    held = {row.partition: row for row in rows}
    return [
        HangingTransaction(open=each, held=held[each.partition], cause=suspects[each])
        for each in left
    ]


async def all_transactions(pool: ConnectionPool) -> list[CoordinatedTransaction]:
    """The transactional ids of all coordinators. Raises CoordinatorsUnknown if some may be
    missing."""
    before = await _coordinators(pool)
    silent: list[int] = []
    try:
        await _check_rights(pool, before)
        known = await list_transactions(pool, silent=silent.append)
    except KafkaError as error:
        raise CoordinatorsUnknown(error.message or error.code.name) from error
    asked = pool.cluster.nodes
    leaders = dict.fromkeys(leader for leader, _ in before)
    missing = [node for node in leaders if node in silent or node not in asked]
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise CoordinatorsUnknown(f"coordinators that did not answer: {names}")
    if await _coordinators(pool) != before:
        raise CoordinatorsUnknown("coordinators changed during the search")
    return known


async def _coordinators(pool: ConnectionPool) -> list[tuple[int, int]]:
    """The leader and its epoch for each partition of ``__transaction_state``."""
    topic = (await pool.metadata([TRANSACTIONS_TOPIC])).topics[0]
    if topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return []
    if topic.error_code is not ErrorCode.NONE:
        raise CoordinatorsUnknown(f"topic {TRANSACTIONS_TOPIC}: {topic.error_code.name}")
    rows = sorted(topic.partitions, key=lambda row: row.partition_index)
    for row in rows:
        if row.leader_id == NO_LEADER:
            raise CoordinatorsUnknown(
                f"partition {row.partition_index} of {TRANSACTIONS_TOPIC} has no leader"
            )
    return [(row.leader_id, row.leader_epoch) for row in rows]


async def _check_rights(pool: ConnectionPool, coordinators: Sequence[tuple[int, int]]) -> None:
    """Coordinators do not list ids that the user may not describe."""
    message = DescribeTransactionsRequest(transactional_ids=(NO_SUCH_ID,))
    messages = dict.fromkeys([leader for leader, _ in coordinators[:1]], message)
    answers, _ = await ask_each(pool, messages, ApiKey.DESCRIBE_TRANSACTIONS)
    codes = [row.error_code for answer in answers.values() for row in answer.transaction_states]
    if ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED in codes:
        raise CoordinatorsUnknown(
            "your user may not see all transactional ids; it needs the right Describe on all"
        )


def cause_of(found: PartitionTransaction, known: Sequence[CoordinatedTransaction]) -> str | None:
    """Why no coordinator will end a transaction; None if one will."""
    owners = [each for each in known if each.producer_id == found.producer_id]
    if not owners:
        return (
            f"no coordinator knows producer id {found.producer_id}, "
            "or your user may not describe its transactional id"
        )
    owner = owners[0]
    if owner.state not in OPEN_STATES:
        return f"{owner.transactional_id} is {owner.state}: the record arrived after its end"
    if found.partition not in owner.partitions:
        return f"the transaction of {owner.transactional_id} does not include the partition"
    return None


async def _places(
    pool: ConnectionPool, topic: str | None, broker: int | None
) -> list[TopicPartition]:
    if topic is None:
        topics = (await pool.metadata(None)).topics
    else:
        topics = (await find_topic(pool, topic, may_be_created=False),)
    places: list[TopicPartition] = []
    for row in topics:
        check(row.error_code, None, f"topic {row.name}")
        places += [
            TopicPartition(TopicName(row.name or ""), PartitionIndex(each.partition_index))
            for each in row.partitions
            if broker is None or each.leader_id == broker
        ]
    if broker is not None and broker not in pool.cluster.nodes:
        known = ", ".join(map(str, sorted(pool.cluster.nodes)))
        raise NotFound(f"there is no broker {broker}; the cluster has {known}")
    return places


def _identity(each: PartitionTransaction) -> tuple[TopicPartition, int, int]:
    return each.partition, each.producer_id, each.start_offset


async def find_open(
    pool: ConnectionPool, at: TopicPartition, start_offset: int
) -> PartitionTransaction:
    """The open transaction of a partition that starts at an offset; raises NotFound."""
    topic = await find_topic(pool, at.topic, may_be_created=False)
    if all(each.partition_index != at.partition for each in topic.partitions):
        count = len(topic.partitions)
        raise NotFound(
            f"{at.topic} has {count} partition{'' if count == 1 else 's'}, "
            f"so there is no partition {at.partition}"
        )
    found = await open_in(pool, [at])
    for each in found:
        if each.start_offset == start_offset:
            return each
    starts = ", ".join(str(each.start_offset) for each in found) or "none"
    raise NotFound(
        f"no open transaction of {at} starts at offset {start_offset}; open ones start at: {starts}"
    )


async def write_abort(pool: ConnectionPool, found: PartitionTransaction) -> None:
    """Write an abort marker to one partition, past any coordinator. Raises KafkaError."""
    at = found.partition
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=at.topic, partition_indexes=(at.partition,)),),
        # A producer that never got a marker has no coordinator epoch.
        coordinator_epoch=max(found.coordinator_epoch, 0),
    )

    async def once() -> ErrorCode:
        leader = await pool.leader(at.topic, at.partition)
        answer: WriteTxnMarkersResponse = await pool.request_node(
            leader, ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=(marker,))
        )
        return answer.markers[0].topics[0].partitions[0].error_code

    check(await pool.try_again(once), None, f"{at}")
