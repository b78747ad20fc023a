"""Transactions: their state and age, the records they hold back, hanging ones, and aborting."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from riverrun.admin.transactions.admin import (
    CoordinatedTransaction,
    HeldPartition,
    PartitionTransaction,
    describe_transaction,
    find_open_transaction,
    force_end,
    list_transactions,
    open_in,
    parse_states,
)
from riverrun.admin.transactions.hanging import (
    CoordinatorsUnknown,
    HangingTransaction,
    all_transactions,
    cause_of,
    find_hanging,
    find_open,
    write_abort,
)
from riverrun.console.listing import ItemPage, ListQuery, matching, ordered, page_of
from riverrun.console.problems import ApiProblem, problem
from riverrun.console.routing import INT32_MAX, INT64_MAX, ApiEndpoint, ClusterRequest
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition

LIST_SECONDS: Final = 2.0
HANGING_SECONDS: Final = 30.0
"""The search asks the leaders of all partitions, so requests share its result for a while."""
HANGING_PARTITIONS_MAX: Final = 2_000
"""In larger clusters the list does not search for hanging transactions; their own list does."""


class TransactionsQuery(ListQuery, kw_only=True):
    """``state`` is one state, such as Ongoing, or several separated by commas."""

    state: str = ""


class TransactionRow(Struct, frozen=True, kw_only=True):
    """A transactional id. ``age_seconds`` is null if no transaction is open; ``hanging`` is null if
    it was not searched for."""

    id: str
    state: str
    producer_id: int
    epoch: int
    coordinator: int
    age_seconds: float | None
    timeout_seconds: float
    partitions: int
    hanging: bool | None


class TransactionPartition(Struct, frozen=True, kw_only=True):
    """A partition of an open transaction. Consumers with read_committed wait for the held
    records."""

    topic: str
    partition: int
    start_offset: int | None
    stable_offset: int | None
    end_offset: int | None
    records_held: int | None
    waiting_groups: list[str]


class TransactionDetails(Struct, frozen=True, kw_only=True):
    """A transactional id with its partitions, and why its transaction is open."""

    id: str
    state: str
    producer_id: int
    epoch: int
    coordinator: int
    age_seconds: float | None
    timeout_seconds: float
    partitions: list[TransactionPartition]
    cause: str
    hanging: bool | None = None


class HangingRow(Struct, frozen=True, kw_only=True):
    """A transaction that is open in a partition, and that no coordinator will end. ``id`` is null
    if no coordinator knows its producer."""

    id: str | None
    topic: str
    partition: int
    start_offset: int
    producer_id: int
    epoch: int
    age_seconds: float
    records_held: int | None
    waiting_groups: list[str]
    cause: str


class HangingList(Struct, frozen=True, kw_only=True):
    """All hanging transactions, and the nodes that did not respond."""

    items: list[HangingRow]
    total: int
    silent_nodes: list[int]
    command: str


class AbortBody(Struct, kw_only=True):
    """Without a topic, the coordinator aborts the transaction and fences its producer. With a topic
    and a partition, an abort marker is written to that partition only; ``start_offset`` chooses
    one of several transactions that are open there."""

    topic: str | None = None
    partition: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    start_offset: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    dry_run: bool = False


class AbortResult(Struct, frozen=True, kw_only=True):
    """The transaction that was or would be aborted, and why it is open."""

    dry_run: bool
    command: str
    id: str | None
    topic: str | None
    partition: int | None
    start_offset: int | None
    producer_id: int
    epoch: int
    partitions: int
    cause: str


async def get_transactions(request: ClusterRequest) -> ItemPage[TransactionRow]:
    query: TransactionsQuery = request.query
    try:
        states = parse_states([text for text in query.state.split(",") if text])
    except ValueError as error:
        raise problem("invalid", f"State {error}.") from None
    found = await _known(request)
    hanging = await _hanging_producers(request)
    now_ms = int(time.time() * 1000)
    rows = [_row(one, hanging, now_ms) for one in found if not states or one.state in states]
    rows = ordered(matching(rows, query, lambda row: row.id), query, SORTS, "id")
    return page_of(rows, query)


SORTS: Final[dict[str, Any]] = {
    "id": lambda row: row.id,
    "state": lambda row: row.state,
    "age_seconds": lambda row: row.age_seconds,
    "timeout_seconds": lambda row: row.timeout_seconds,
    "partitions": lambda row: row.partitions,
    "producer_id": lambda row: row.producer_id,
    "coordinator": lambda row: row.coordinator,
}


async def _known(request: ClusterRequest) -> list[CoordinatedTransaction]:
    return await request.results.get(
        "transactions", LIST_SECONDS, lambda: list_transactions(request.pool)
    )


async def _hanging_producers(request: ClusterRequest) -> dict[int, None] | None:
    """The producers of hanging transactions; None if there are too many partitions to search, or
    if a coordinator did not answer."""
    topics = (await request.metadata()).topics
    if sum(len(topic.partitions) for topic in topics) > HANGING_PARTITIONS_MAX:
        return None
    try:
        found, _ = await _search(request)
    except CoordinatorsUnknown:
        return None
    return dict.fromkeys(one.open.producer_id for one in found)


async def _search(request: ClusterRequest) -> tuple[list[HangingTransaction], list[int]]:
    async def search() -> tuple[list[HangingTransaction], list[int]]:
        silent: list[int] = []
        found = await find_hanging(request.pool, silent=silent.append)
        return found, sorted(set(silent))

    return await request.results.get("hanging", HANGING_SECONDS, search)


def _row(
    found: CoordinatedTransaction, hanging: dict[int, None] | None, now_ms: int
) -> TransactionRow:
    return TransactionRow(
        id=found.transactional_id,
        state=found.state,
        producer_id=found.producer_id,
        epoch=found.producer_epoch,
        coordinator=found.coordinator,
        age_seconds=found.age_seconds(now_ms),
        timeout_seconds=found.timeout_ms / 1000,
        partitions=len(found.partitions),
        hanging=None if hanging is None else found.producer_id in hanging,
    )


async def get_transaction(request: ClusterRequest) -> TransactionDetails:
    found, held = await describe_transaction(request.pool, request.params["id"])
    hanging = await _hanging_producers(request)
    now_ms = int(time.time() * 1000)
    return TransactionDetails(
        id=found.transactional_id,
        state=found.state,
        producer_id=found.producer_id,
        epoch=found.producer_epoch,
        coordinator=found.coordinator,
        age_seconds=found.age_seconds(now_ms),
        timeout_seconds=found.timeout_ms / 1000,
        partitions=[_partition(row) for row in held],
        cause=found.cause(now_ms),
        hanging=None if hanging is None else found.producer_id in hanging,
    )


def _partition(row: HeldPartition) -> TransactionPartition:
    return TransactionPartition(
        topic=row.partition.topic,
        partition=row.partition.partition,
        start_offset=row.start_offset,
        stable_offset=row.stable_offset,
        end_offset=row.high_watermark,
        records_held=row.held,
        waiting_groups=list(row.groups),
    )


async def get_hanging(request: ClusterRequest) -> HangingList:
    try:
        found, silent = await _search(request)
    except CoordinatorsUnknown as error:
        raise _undecided(error) from error
    known = {one.producer_id: one.transactional_id for one in await _known(request)}
    now_ms = int(time.time() * 1000)
    items = [
        HangingRow(
            id=known.get(one.open.producer_id),
            topic=one.open.partition.topic,
            partition=one.open.partition.partition,
            start_offset=one.open.start_offset,
            producer_id=one.open.producer_id,
            epoch=one.open.producer_epoch,
            age_seconds=one.age_seconds(now_ms),
            records_held=one.held.held,
            waiting_groups=list(one.held.groups),
            cause=one.cause,
        )
        for one in found
    ]
    return HangingList(
        items=items,
        total=len(items),
        silent_nodes=silent,
        command=request.cluster.command("transactions", "hanging"),
    )


def _undecided(error: CoordinatorsUnknown) -> ApiProblem:
    return ApiProblem(
        503,
        "error",
        f"It is not known which transactions hang: {error}.",
        "Abort nothing in single partitions until all coordinators answer.",
    )


async def abort(request: ClusterRequest) -> AbortResult:
    body: AbortBody = request.body
    if (body.topic is None) != (body.partition is None):
        raise problem("invalid", "A partition and its topic belong together.", "Name both.")
    if body.topic is not None and body.partition is not None:
        at = TopicPartition(TopicName(body.topic), PartitionIndex(body.partition))
        return await _abort_partition(request, at, body.start_offset)
    name = request.params["id"]
    try:
        found = await find_open_transaction(request.pool, name)
    except KafkaError as error:
        if error.code is ErrorCode.INVALID_TXN_STATE:
            raise problem("conflict", f"{error.message}.", "Nothing has to be aborted.") from None
        raise
    cause = found.cause(int(time.time() * 1000))
    if not body.dry_run:
        await force_end(request.pool, name)
    return AbortResult(
        dry_run=body.dry_run,
        command=request.cluster.command("transactions", "abort", name, "--yes"),
        id=name,
        topic=None,
        partition=None,
        start_offset=None,
        producer_id=found.producer_id,
        epoch=found.producer_epoch,
        partitions=len(found.partitions),
        cause=cause,
    )


async def _abort_partition(
    request: ClusterRequest, at: TopicPartition, start_offset: int | None
) -> AbortResult:
    pool, dry_run = request.pool, request.body.dry_run
    try:
        known = await all_transactions(pool)
    except CoordinatorsUnknown as error:
        raise _undecided(error) from error
    if start_offset is None:
        start_offset = await _only_start(request, at, known)
    found = await find_open(pool, at, start_offset)
    owner = next((one for one in known if one.producer_id == found.producer_id), None)
    cause = cause_of(found, known) or "its coordinator will end it: it does not hang"
    if not dry_run:
        await write_abort(pool, found)
    words = ("--topic", at.topic, "--partition", str(at.partition))
    return AbortResult(
        dry_run=dry_run,
        command=request.cluster.command(
            "transactions", "abort", *words, "--start-offset", str(start_offset), "--yes"
        ),
        id=None if owner is None else owner.transactional_id,
        topic=at.topic,
        partition=at.partition,
        start_offset=start_offset,
        producer_id=found.producer_id,
        epoch=found.producer_epoch,
        partitions=1,
        cause=cause,
    )


async def _only_start(
    request: ClusterRequest, at: TopicPartition, known: list[CoordinatedTransaction]
) -> int:
    """The first offset of the transaction of the path's id, or of the only one that hangs."""
    name = request.params["id"]
    owned = [one.producer_id for one in known if one.transactional_id == name]
    found = await open_in(request.pool, [at])
    candidates: list[PartitionTransaction] = [
        one
        for one in found
        if one.producer_id in owned or (not owned and cause_of(one, known) is not None)
    ]
    if len(candidates) == 1:
        return candidates[0].start_offset
    starts = ", ".join(str(one.start_offset) for one in found) or "none"
    if not candidates:
        raise problem(
            "not_found", f"No such transaction is open in {at}.", f"Open ones start at: {starts}."
        )
    raise problem(
        "conflict",
        f"{len(candidates)} transactions are open in {at}.",
        f"Choose one with start_offset: {starts}.",
    )


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "transactions",
        get_transactions,
        "Transactional ids with the state and age of their transaction",
        query=TransactionsQuery,
        response=ItemPage[TransactionRow],
        tag="transactions",
    ),
    ApiEndpoint(
        "GET",
        "transactions/{id}",
        get_transaction,
        "A transaction, its partitions, and who waits for it",
        response=TransactionDetails,
        tag="transactions",
    ),
    ApiEndpoint(
        "GET",
        "transactions-hanging",
        get_hanging,
        "Transactions that no coordinator will end",
        response=HangingList,
        tag="transactions",
    ),
    ApiEndpoint(
        "POST",
        "transactions/{id}/abort",
        abort,
        "Abort a transaction; `-` stands for an unknown transactional id",
        body=AbortBody,
        response=AbortResult,
        tag="transactions",
    ),
)
