"""How far followers are behind their leaders: every node is asked at the same moment for the ends
of its own copies, as Kafka's debugging consumer does it, which any replica answers.

Nothing is taken from what nodes say of each other, so one command to any node suffices, and a node
that does not answer is unknown, not late. What is written between two answers of one round may
show as a lag of that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from riverrun.cli.support.session import ask_each
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_log_dirs_request import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from riverrun.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from riverrun.wire.messages.metadata_response import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ANY_REPLICA = -2
"""The replica id by which a node answers for its copy, whether it leads or not."""
ANSWER_SECONDS_MAX = 2.0
COPIES_PER_SECOND = 2_000
"""How many a node may take a second for before it counts as silent, on a slow machine."""
SHOWN_MAX = 4
"""Followers of a partition that a person is shown; of more, only the one furthest behind."""

Held = tuple[int, TopicPartition]
"""A node's copy of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A copy beside the leader's; None is what nobody could tell."""

    node: int
    end_offset: int | None
    size_bytes: int | None
    lag: int | None
    """Records of the leader's log that it lacks."""
    lag_bytes: int | None
    """By the mean size of the leader's records, for nobody counts bytes by offset."""

    def described(self) -> dict[str, object]:
        return {
            "node": self.node, "end_offset": self.end_offset, "size_bytes": self.size_bytes,
            "lag": self.lag, "lag_bytes": self.lag_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What all nodes hold, as they say themselves."""

    starts: Mapping[Held, int]
    ends: Mapping[Held, int]
    sizes: Mapping[Held, int]
    silent: frozenset[int]
    """Nodes that hold copies, and do not answer."""

    def followers(
        self, at: TopicPartition, leader: int, replicas: Sequence[int]
    ) -> tuple[Follower, ...]:
        return tuple(self._follower(at, leader, node) for node in replicas if node != leader)

    def _follower(self, at: TopicPartition, leader: int, node: int) -> Follower:
        end, size = self.ends.get((node, at)), self.sizes.get((leader, at))
        leader_start, leader_end = self.starts.get((leader, at)), self.ends.get((leader, at))
        lag = lag_bytes = None
        if end is not None and leader_start is not None and leader_end is not None:
            # What the leader has deleted, nobody needs to fetch.
            lag = max(0, leader_end - max(end, leader_start))
            records = leader_end - leader_start
            if size is not None:
                lag_bytes = lag * size // records if records > 0 else 0
        return Follower(
            node=node,
            end_offset=end,
            size_bytes=self.sizes.get((node, at)),
            lag=lag,
            lag_bytes=lag_bytes,
        )


def place_of(topic: MetadataResponseTopic, row: MetadataResponsePartition) -> TopicPartition:
    return TopicPartition(TopicName(topic.name or ""), PartitionIndex(row.partition_index))


async def ask_copies(
    pool: ConnectionPool, topics: Iterable[MetadataResponseTopic], *, with_sizes: bool
) -> Copies:
    """One round to all nodes that hold something of these topics."""
    held: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for row in topic.partitions:
            for node in row.replica_nodes:
                rows = held.setdefault(node, {}).setdefault(topic.name or "", [])
                rows.append(row.partition_index)
    known = {node: held[node] for node in held if node in pool.cluster.nodes}
    count = max((sum(map(len, one.values())) for one in known.values()), default=0)
    limit_s = ANSWER_SECONDS_MAX + count / COPIES_PER_SECOND
    found = await run_together(
        [
            _offsets(pool, known, EARLIEST, limit_s),
            _offsets(pool, known, LATEST, limit_s),
            _sizes(pool, known if with_sizes else {}, limit_s),
        ]
    )
    (starts, _), (ends, _), (sizes, _) = found
    gone = [node for node in held if node not in known]
    silent = frozenset([*gone, *(node for _, silent in found for node in silent)])
    return Copies(starts=starts, ends=ends, sizes=sizes, silent=silent)


async def _offsets(
    pool: ConnectionPool, held: Mapping[int, Mapping[str, Sequence[int]]], time: int, limit_s: float
) -> tuple[dict[Held, int], list[int]]:
    messages = {
        node: ListOffsetsRequest(
            replica_id=ANY_REPLICA,
            isolation_level=0,
            topics=tuple(
                ListOffsetsTopic(
                    name=name,
                    partitions=tuple(
                        ListOffsetsPartition(partition_index=index, timestamp=time)
                        for index in indexes
                    ),
                )
                for name, indexes in topics.items()
            ),
        )
        for node, topics in held.items()
    }
    answers, silent = await ask_each(pool, messages, ApiKey.LIST_OFFSETS, limit_s=limit_s)
    found = {
        (node, TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index))): int(
            row.offset
        )
        for node, answer in answers.items()
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code is ErrorCode.NONE
    }
    return found, silent


async def _sizes(
    pool: ConnectionPool, held: Mapping[int, Mapping[str, Sequence[int]]], limit_s: float
) -> tuple[dict[Held, int], list[int]]:
    messages = {
        node: DescribeLogDirsRequest(
            topics=tuple(
                DescribableLogDirTopic(topic=name, partitions=tuple(indexes))
                for name, indexes in topics.items()
            )
        )
        for node, topics in held.items()
    }
    answers, silent = await ask_each(pool, messages, ApiKey.DESCRIBE_LOG_DIRS, limit_s=limit_s)
    found = {
        (node, TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index))): int(
            row.partition_size
        )
        for node, answer in answers.items()
        for directory in answer.results
        for topic in directory.topics
        for row in topic.partitions
        if not row.is_future_key
    }
    return found, silent


def in_short(followers: Sequence[Follower], *, shown_max: int | None = SHOWN_MAX) -> str | None:
    """``2:0 3:1500``, node and lag; ``?`` where it is not known. None if nobody follows."""
    known = [one for one in followers if one.lag is not None]
    if shown_max is not None and len(followers) > shown_max:
        worst = max(known, key=lambda one: one.lag or 0, default=None)
        words = [] if worst is None else [f"{_cell(worst)} at most"]
        unknown = len(followers) - len(known)
        return ", ".join([*words, *([f"{unknown} unknown"] if unknown else [])])
    return " ".join(_cell(one) for one in followers) or None


def _cell(follower: Follower) -> str:
    return f"{follower.node}:{'?' if follower.lag is None else follower.lag}"
