"""Groups as the cluster reports them: list, describe with lag, reset and delete offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from riverrun.admin.requests import NotFound, alike, ask_each, check, find_topic
from riverrun.admin.tables import counted
from riverrun.client.group_description import (
    GroupDescription,
    MemberDescription,
    describe_group_of_any_type,
)
from riverrun.client.offsets import (
    commit_offsets,
    committed_offsets,
    committed_positions,
    offsets_at,
)
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.delete_groups_request import DeleteGroupsRequest
from riverrun.wire.messages.delete_groups_response import DeleteGroupsResponse
from riverrun.wire.messages.list_groups_request import ListGroupsRequest
from riverrun.wire.messages.list_groups_response import ListGroupsResponse
from riverrun.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse

EMPTY = "Empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRow:
    group: str
    state: str
    type: str
    protocol_type: str
    coordinator: int

    def described(self) -> dict[str, object]:
        return {
            "group": self.group,
            "state": self.state,
            "type": self.type,
            "protocol_type": self.protocol_type,
            "coordinator": self.coordinator,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A group's position in one partition."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    """None if the topic was deleted."""
    member_id: str | None
    metadata: str = ""
    """The text that the consumer stored with its commit."""

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    name: str
    type: str
    state: str
    epoch: int | None
    """None for classic groups, as the assignment epoch and the epochs of members."""
    assignment_epoch: int | None
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    offsets: tuple[OffsetRow, ...]

    @property
    def lag(self) -> int:
        return sum(row.lag or 0 for row in self.offsets)

    def described(self) -> dict[str, object]:
        return {
            "group": self.name,
            "type": self.type,
            "state": self.state,
            "epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor": self.assignor or None,
            "coordinator": self.coordinator,
            "lag": self.lag,
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "epoch": member.epoch,
                    "state": member.state,
                    "partitions": [
                        {"topic": at.topic, "partition": at.partition} for at in member.partitions
                    ],
                }
                for member in self.members
            ],
            "partitions": [
                {
                    "topic": row.partition.topic,
                    "partition": row.partition.partition,
                    "committed_offset": row.committed,
                    "end_offset": row.end,
                    "lag": row.lag,
                    "member_id": row.member_id,
                }
                for row in self.offsets
            ],
        }


async def list_all(
    pool: ConnectionPool,
    states: Sequence[str] = (),
    silent: Callable[[int], None] = lambda node: None,
) -> list[ListedRow]:
    """Each node lists the groups that it coordinates; ``silent`` receives nodes that do not
    respond."""
    await pool.metadata(())
    rows: list[ListedRow] = []
    message = ListGroupsRequest(states_filter=tuple(states))
    messages = dict.fromkeys(pool.cluster.nodes, message)
    answers, missing = await ask_each(pool, messages, ApiKey.LIST_GROUPS)
    for node in missing:
        silent(node)
    answer: ListGroupsResponse
    for node, answer in answers.items():
        check(answer.error_code, None, f"groups of node {node}")
        rows += [
            ListedRow(
                group=row.group_id,
                state=row.group_state,
                type=row.group_type,
                protocol_type=row.protocol_type,
                coordinator=node,
            )
            for row in answer.groups
        ]
    return sorted(rows, key=lambda row: row.group)


async def describe_group(pool: ConnectionPool, name: str) -> Group:
    found = await _find(pool, name)
    members = found.members
    owners = {at: member.member_id for member in members for at in member.partitions}
    committed = await committed_positions(pool, name)
    places = sorted({**owners, **committed})
    ends = await _ends(pool, places)
    return Group(
        name=name,
        type=found.type,
        state=found.state,
        epoch=found.epoch,
        assignment_epoch=found.assignment_epoch,
        assignor=found.assignor,
        coordinator=await pool.coordinator(name),
        members=members,
        offsets=tuple(
            OffsetRow(
                partition=at,
                committed=committed[at].offset if at in committed else None,
                end=ends.get(at),
                member_id=owners.get(at),
                metadata=committed[at].metadata if at in committed else "",
            )
            for at in places
        ),
    )


async def _find(pool: ConnectionPool, name: str) -> GroupDescription:
    row = await describe_group_of_any_type(pool, name)
    if row is None:
        known = [listed.group for listed in await list_all(pool)]
        raise NotFound(
            f"there is no group {name}{alike(name, known)}\n  `riverrun groups list` lists all."
        )
    return row


async def _ends(
    pool: ConnectionPool, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """End offsets of existing topics: a group may have read topics that were deleted."""
    topics = sorted({at.topic for at in places})
    there: dict[TopicPartition, int] = {}
    for topic in (await pool.metadata(topics)).topics if topics else ():
        if topic.error_code is ErrorCode.NONE:
            for row in topic.partitions:
                there[_place(topic.name or "", row.partition_index)] = LATEST
    return await offsets_at(pool, {at: LATEST for at in places if at in there})


async def delete_groups(pool: ConnectionPool, names: Sequence[str]) -> dict[str, KafkaError]:
    """The groups that were not deleted, with the reason."""
    for name in names:
        await _find(pool, name)
    failures: dict[str, KafkaError] = {}
    for name in dict.fromkeys(names):
        answer: DeleteGroupsResponse = await pool.group_request(
            name,
            ApiKey.DELETE_GROUPS,
            DeleteGroupsRequest(groups_names=(name,)),
            lambda answer: ErrorCode(answer.results[0].error_code),
        )
        code = answer.results[0].error_code
        if code is not ErrorCode.NONE:
            failures[name] = KafkaError(code, f"group {name}: {code.name}")
    return failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to move a group. Exactly one field is set."""

    time: int | None = None
    """In ms; also ``EARLIEST`` and ``LATEST``."""
    offset: int | None = None
    shift: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    partition: TopicPartition
    old: int | None
    new: int
    end: int

    def described(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "old_offset": self.old,
            "new_offset": self.new,
            "end_offset": self.end,
            "new_lag": self.end - self.new,
        }


async def plan_moves(
    pool: ConnectionPool, name: str, target: Target, wanted: Mapping[str, frozenset[int] | None]
) -> list[Move]:
    """The effect of a reset. ``wanted`` are topics with their partitions (None for all); if
    empty, everything that the group has committed."""
    committed = await committed_offsets(pool, name)
    places = await _places(pool, name, wanted, committed)
    starts = await offsets_at(pool, dict.fromkeys(places, EARLIEST))
    ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
    times = {}
    if target.time is not None:
        times = await offsets_at(pool, dict.fromkeys(places, target.time))
    return [
        Move(
            partition=at,
            old=committed.get(at),
            new=new_offset(
                target,
                old=committed.get(at),
                start=starts[at],
                end=ends[at],
                at_time=times.get(at),
            ),
            end=ends[at],
        )
        for at in places
    ]


def new_offset(
    target: Target, *, old: int | None, start: int, end: int, at_time: int | None
) -> int:
    """Within [start, end], like Kafka's own tool."""
    if target.offset is not None:
        wanted = target.offset
    elif target.shift is not None:
        # A group without a commit would have started at the end.
        wanted = (end if old is None else old) + target.shift
    else:
        assert at_time is not None, "the time was asked for"
        wanted = end if at_time < 0 else at_time  # no record is that recent
    return min(max(wanted, start), end)


async def _places(
    pool: ConnectionPool,
    name: str,
    wanted: Mapping[str, frozenset[int] | None],
    committed: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    if not wanted:
        if not committed:
            await _find(pool, name)
            raise NotFound(f"group {name} has no committed offsets; name topics with --topic")
        there = await _ends(pool, sorted(committed))
        return sorted(there)
    return await find_partitions(pool, wanted)


async def find_partitions(
    pool: ConnectionPool, wanted: Mapping[str, frozenset[int] | None]
) -> list[TopicPartition]:
    """The wanted partitions of topics (None: all of them); raises NotFound."""
    places: list[TopicPartition] = []
    for topic, indexes in wanted.items():
        row = await find_topic(pool, topic, may_be_created=False)
        there_are = sorted(partition.partition_index for partition in row.partitions)
        for index in sorted(indexes or ()):
            if index not in there_are:
                raise NotFound(f"topic {topic} has no partition {index}")
        places += [_place(topic, index) for index in sorted(indexes or there_are)]
    return sorted(places)


async def refusal_of(pool: ConnectionPool, name: str) -> KafkaError | None:
    """Why the offsets of a group cannot be changed now: only a group without members accepts
    that."""
    row = await describe_group_of_any_type(pool, name)
    if row is None or row.state == EMPTY:
        return None
    members = counted(len(row.members), "member")
    return KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {name} is {row.state} and has {members}")


async def move(pool: ConnectionPool, name: str, moves: Sequence[Move]) -> None:
    """Commit the new offsets."""
    refusal = await refusal_of(pool, name)
    if refusal is not None:
        raise refusal
    await commit_offsets(pool, name, {step.partition: step.new for step in moves})


async def find_committed(
    pool: ConnectionPool, name: str, wanted: Mapping[str, frozenset[int] | None]
) -> dict[TopicPartition, int]:
    """The committed offsets of a group in some topics; raises NotFound."""
    committed = await committed_offsets(pool, name)
    if not committed:
        await _find(pool, name)
    found: dict[TopicPartition, int] = {}
    for topic, indexes in wanted.items():
        there = {
            at: offset
            for at, offset in sorted(committed.items())
            if at.topic == topic and (indexes is None or at.partition in indexes)
        }
        if not there:
            known = ", ".join(sorted({at.topic for at in committed})) or "none"
            raise NotFound(
                f"group {name} has no committed offsets of {topic}; it has those of: {known}"
            )
        found.update(there)
    return found


async def delete_offsets(
    pool: ConnectionPool, name: str, places: Sequence[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Delete committed offsets; returns those that were not deleted, with the reason."""
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for at in places:
        row = OffsetDeleteRequestPartition(partition_index=at.partition)
        topics.setdefault(at.topic, []).append(row)
    answer: OffsetDeleteResponse = await pool.group_request(
        name,
        ApiKey.OFFSET_DELETE,
        OffsetDeleteRequest(
            group_id=name,
            topics=tuple(
                OffsetDeleteRequestTopic(name=topic, partitions=tuple(rows))
                for topic, rows in topics.items()
            ),
        ),
        lambda answer: ErrorCode(answer.error_code),
    )
    check(answer.error_code, None, f"group {name}")
    return {
        _place(topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code is not ErrorCode.NONE
    }


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
