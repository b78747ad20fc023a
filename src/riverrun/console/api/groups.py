"""Consumer groups: members, offsets and lag."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from riverrun.admin.groups import admin
from riverrun.admin.groups.admin import ListedRow, Target
from riverrun.admin.groups.delays import ask_waiting_seconds
from riverrun.admin.groups.listing import GroupSummary, summarize
from riverrun.admin.node_facts import NodeSeries, ask_facts
from riverrun.admin.times import in_utc
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.console.cluster_facts import SharedFacts
from riverrun.console.lag_book import LagBook
from riverrun.console.listing import ItemPage, Key, ListQuery, matching, ordered, page_of
from riverrun.console.problems import problem
from riverrun.console.routing import INT64_MAX, ApiEndpoint, ChangeResult, ClusterRequest
from riverrun.model.errors import KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import run_together

TAG: Final = "groups"
SUMMARY_SECONDS: Final = 10.0
DELAY_SECONDS: Final = 4.0
DELAYS_MAX: Final = 32
"""Partitions of a group whose oldest unread record is looked at: those with the most lag."""
SUMMARY_SORTS: Final = ("members", "lag")
"""Orders for which all groups must be described."""
SORTS: Final[Mapping[str, Key]] = {
    "group": lambda row: row.group,
    "state": lambda row: row.state,
}


class GroupItem(Struct, kw_only=True):
    """A group. Its lag is null if it has committed nothing, or no leader responds."""

    group: str
    state: str
    type: str
    members: int | None
    topics: int
    """How many topics it reads."""
    lag: int | None
    lag_seconds: float | None
    """The age of the oldest record that it has not read."""
    coordinator: int


class MemberPlace(Struct, kw_only=True):
    topic: str
    partition: int


class GroupMemberItem(Struct, kw_only=True):
    """A consumer, and the partitions that are assigned to it."""

    member: str
    client_id: str
    host: str
    instance: str | None
    """The id of a static member."""
    partitions: list[MemberPlace]


class GroupPartition(Struct, kw_only=True):
    """The position of a group in a partition."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    """Null if the topic was deleted."""
    lag: int | None
    lag_seconds: float | None
    member: str | None
    metadata: str


class GroupDetails(Struct, kw_only=True):
    """A group with its members and positions."""

    group: str
    state: str
    type: str
    protocol: str
    """The assignor that its members agreed on."""
    coordinator: int
    lag: int
    lag_seconds: float | None
    catch_up_seconds: float | None
    """When it has read everything if it goes on like in the last minute; null if it never will, or
    while that is unknown."""
    members: list[GroupMemberItem]
    partitions: list[GroupPartition]


class ResetBody(Struct, kw_only=True):
    """Where to move a group. ``value`` is a time in ms, an offset, or a number of records to move
    by; earliest and latest need none. Without topics, all that the group has committed."""

    to: Literal["earliest", "latest", "time", "offset", "by"]
    value: Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)] | None = None
    topics: list[str] | None = None
    dry_run: bool = False


class OffsetChange(Struct, kw_only=True, rename={"from_": "from"}):
    """``from`` is null for a partition without a committed offset, ``to`` when it is deleted."""

    topic: str
    partition: int
    from_: int | None
    to: int | None
    lag: int | None = None
    """After the change."""


class OffsetsResult(ChangeResult, kw_only=True):
    changes: list[OffsetChange] = field(default_factory=list)


class GroupDeletionQuery(Struct, kw_only=True):
    dry_run: bool = False


class OffsetsDeletionQuery(Struct, kw_only=True):
    topic: str
    dry_run: bool = False


async def list_groups(request: ClusterRequest) -> ItemPage[GroupItem]:
    query: ListQuery = request.query
    rows = matching(await SharedFacts(request.connected).groups(), query, lambda row: row.group)
    if query.sort in SUMMARY_SORTS:
        wanted = {row.group for row in rows}
        found = [one for one in await summaries(request) if one.row.group in wanted]
        keys: Mapping[str, Key] = {
            "group": lambda one: one.row.group,
            "members": lambda one: one.members,
            "lag": lambda one: one.lag,
        }
        page = page_of(ordered(found, query, keys, "group"), query)
        shown: Sequence[GroupSummary] = page.items
    else:
        listed = page_of(ordered(rows, query, SORTS, "group"), query)
        shown = await summarize(request.pool, listed.items)
    delays = await _delays_of_groups(request, [one.row for one in shown])
    return ItemPage(
        items=[_item(one, delays.get(one.row.group)) for one in shown],
        total=len(rows),
        page=query.page,
        limit=query.limit,
    )


async def summaries(request: ClusterRequest) -> list[GroupSummary]:
    """All groups with their members and lag, at most ten seconds old."""

    async def make() -> list[GroupSummary]:
        return await summarize(request.pool, await SharedFacts(request.connected).groups())

    return await request.results.get("group summaries", SUMMARY_SECONDS, make)


def _item(found: GroupSummary, lag_seconds: float | None) -> GroupItem:
    row = found.row
    return GroupItem(
        group=row.group,
        state=row.state,
        type=row.type or "classic",
        members=found.members,
        topics=len(found.topics),
        lag=found.lag,
        lag_seconds=0.0 if found.lag == 0 else lag_seconds,
        coordinator=row.coordinator,
    )


async def _delays_of_groups(
    request: ClusterRequest, rows: Iterable[ListedRow]
) -> dict[str, float | None]:
    """The lag of groups in seconds, as the coordinators of riverrun measure it."""
    states = await SharedFacts(request.connected).nodes()
    found: dict[str, float | None] = {}

    async def ask(row: ListedRow) -> None:
        query = {"series": ["lag_seconds"], "minutes": 1, "group": row.group}
        answers = await ask_facts(request.pool, [row.coordinator], "history", query, NodeSeries)
        for answer in answers.values():
            found[row.group] = answer.newest("lag_seconds")

    await run_together(ask(row) for row in rows if row.coordinator in states)
    return found


async def get_group(request: ClusterRequest) -> GroupDetails:
    name = request.params["group"]
    group = await admin.describe_group(request.pool, name)
    listed = {row.group: row for row in await SharedFacts(request.connected).groups()}
    waits = await request.results.get(
        ("waits", name), DELAY_SECONDS, lambda: _waits(request, group.offsets)
    )
    book: LagBook = await request.results.get("lag book", inf, _new_book)
    known = [seconds for seconds in waits.values() if seconds is not None]
    return GroupDetails(
        group=name,
        state=group.state,
        type=(listed[name].type if name in listed else "") or "classic",
        protocol=group.assignor,
        coordinator=group.coordinator,
        lag=group.lag,
        lag_seconds=max(known) if known else None if group.lag else 0.0,
        catch_up_seconds=book.add(name, group.lag, time.monotonic()),
        members=[
            GroupMemberItem(
                member=member.member_id,
                client_id=member.client_id,
                host=member.host,
                instance=member.instance_id,
                partitions=[
                    MemberPlace(topic=at.topic, partition=at.partition) for at in member.partitions
                ],
            )
            for member in group.members
        ],
        partitions=[
            GroupPartition(
                topic=row.partition.topic,
                partition=row.partition.partition,
                committed=row.committed,
                end=row.end,
                lag=row.lag,
                lag_seconds=0.0 if row.lag == 0 else waits.get(row.partition),
                member=row.member_id,
                metadata=row.metadata,
            )
            for row in group.offsets
        ],
    )


async def _waits(
    request: ClusterRequest, offsets: Sequence[admin.OffsetRow]
) -> dict[TopicPartition, float]:
    late = sorted((row for row in offsets if row.lag), key=lambda row: -(row.lag or 0))
    positions = {row.partition: row.committed or 0 for row in late[:DELAYS_MAX]}
    return await ask_waiting_seconds(request.pool, positions, time.time_ns() // 1_000_000)


async def _new_book() -> LagBook:
    return LagBook()


async def reset_group(request: ClusterRequest) -> OffsetsResult:
    """Move a group to other offsets. It must have no members, except for a dry run."""
    body: ResetBody = request.body
    name = request.params["group"]
    target, words = _target(body)
    wanted: dict[str, frozenset[int] | None] = dict.fromkeys(body.topics or ())
    moves = await admin.plan_moves(request.pool, name, target, wanted)
    if not body.dry_run:
        await admin.move(request.pool, name, moves)
    topics = [word for topic in body.topics or () for word in ("--topic", topic)]
    return OffsetsResult(
        dry_run=body.dry_run,
        command=request.cluster.command(
            "groups", "reset-offsets", name, *topics, *words, "--execute"
        ),
        changes=[
            OffsetChange(
                topic=move.partition.topic,
                partition=move.partition.partition,
                from_=move.old,
                to=move.new,
                lag=move.end - move.new,
            )
            for move in moves
        ],
    )


def _target(body: ResetBody) -> tuple[Target, list[str]]:
    """The target, and its option of the command line."""
    if body.to == "earliest":
        return Target(time=EARLIEST), ["--to-earliest"]
    if body.to == "latest":
        return Target(time=LATEST), ["--to-latest"]
    value = body.value
    if value is None:
        raise problem("invalid", f"to={body.to} needs a value.", "Send a number.")
    if body.to == "by":
        return Target(shift=value), ["--shift-by", str(value)]
    if value < 0:
        raise problem("invalid", f"{body.to} {value} is negative.", "Send a number from 0.")
    if body.to == "offset":
        return Target(offset=value), ["--to-offset", str(value)]
    return Target(time=value), ["--to-datetime", in_utc(value)]


async def delete_group(request: ClusterRequest) -> ChangeResult:
    query: GroupDeletionQuery = request.query
    name = request.params["group"]
    await admin.describe_group(request.pool, name)
    refusal = await admin.refusal_of(request.pool, name)
    if refusal is not None:
        raise refusal
    if not query.dry_run:
        raise_first((await admin.delete_groups(request.pool, [name])).values())
    return ChangeResult(
        dry_run=query.dry_run, command=request.cluster.command("groups", "delete", name, "--yes")
    )


async def delete_offsets(request: ClusterRequest) -> OffsetsResult:
    """Forget how far a group has read a topic. Its members must not read the topic."""
    query: OffsetsDeletionQuery = request.query
    name = request.params["group"]
    found = await admin.find_committed(request.pool, name, {query.topic: None})
    if not query.dry_run:
        left = await admin.delete_offsets(request.pool, name, list(found))
        raise_first(KafkaError(code, f"{at}: {code.name}") for at, code in left.items())
    return OffsetsResult(
        dry_run=query.dry_run,
        command=request.cluster.command(
            "groups", "delete-offsets", name, "--topic", query.topic, "--yes"
        ),
        changes=[
            OffsetChange(topic=at.topic, partition=at.partition, from_=offset, to=None)
            for at, offset in found.items()
        ],
    )


def raise_first(errors: Iterable[KafkaError]) -> None:
    for error in errors:
        raise error


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "groups",
        list_groups,
        "All groups; sorts: group, state, members, lag",
        query=ListQuery,
        response=ItemPage[GroupItem],
        tag=TAG,
    ),
    ApiEndpoint("GET", "groups/{group}", get_group, "A group", response=GroupDetails, tag=TAG),
    ApiEndpoint(
        "POST",
        "groups/{group}/reset",
        reset_group,
        "Move a group to other offsets",
        body=ResetBody,
        response=OffsetsResult,
        tag=TAG,
    ),
    ApiEndpoint(
        "DELETE",
        "groups/{group}",
        delete_group,
        "Delete a group with its offsets",
        query=GroupDeletionQuery,
        response=ChangeResult,
        tag=TAG,
    ),
    ApiEndpoint(
        "DELETE",
        "groups/{group}/offsets",
        delete_offsets,
        "Delete the offsets of a group in a topic",
        query=OffsetsDeletionQuery,
        response=OffsetsResult,
        tag=TAG,
    ),
)
