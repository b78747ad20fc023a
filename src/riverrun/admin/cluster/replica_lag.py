"""Replica lag: asks every node at the same moment for the end offsets of its own replicas, like
Kafka's debugging consumer, which any replica serves.

It does not rely on what nodes report about each other, so one command to any node is enough, and a
node that does not respond is unknown, not late. Records written during a round may show as a small
lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from riverrun.admin.requests import ask_each
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

NO_LEADER = -1
ANY_REPLICA = -2
"""The replica id with which a node serves its own copy, leader or not."""
CLIENT = -1
"""The replica id of a client."""
ANSWER_SECONDS_MAX = 2.0
COPIES_PER_SECOND = 2_000
"""Partitions that a slow node handles in one second before it counts as silent."""
SHOWN_MAX = 4
"""Followers per partition shown on a terminal; of more, only the one with the largest lag."""

Held = tuple[int, TopicPartition]
"""A node's replica of a partition."""
Wanted = Mapping[int, Mapping[str, Sequence[int]]]
"""Partitions by topic, for each node that is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLag:
    """A follower; None where unknown."""

    node: int
    end_offset: int | None
    size_bytes: int | None
    lag: int | None
    """Records of the leader's log that it lacks."""
    lag_bytes: int | None
    """Estimated from the mean size of the leader's records."""

    def described(self) -> dict[str, object]:
        return {
            "node": self.node, "end_offset": self.end_offset, "size_bytes": self.size_bytes,
            "lag": self.lag, "lag_bytes": self.lag_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The replicas of all nodes, as reported by themselves."""

    starts: Mapping[Held, int]
    ends: Mapping[Held, int]
    sizes: Mapping[Held, int]
    silent: frozenset[int]
    """Nodes that hold replicas and do not respond."""

    def followers(
        self, at: TopicPartition, leader: int, replicas: Sequence[int]
    ) -> tuple[FollowerLag, ...]:
        return tuple(self._follower(at, leader, node) for node in replicas if node != leader)

    def _follower(self, at: TopicPartition, leader: int, node: int) -> FollowerLag:
        end, size = self.ends.get((node, at)), self.sizes.get((leader, at))
        leader_start, leader_end = self.starts.get((leader, at)), self.ends.get((leader, at))
        lag = lag_bytes = None
        if end is not None and leader_start is not None and leader_end is not None:
            # Records deleted by the leader need not be fetched.
            lag = max(0, leader_end - max(end, leader_start))
            records = leader_end - leader_start
            if size is not None:
                lag_bytes = lag * size // records if records > 0 else 0
        return FollowerLag(
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
    """One round of requests to all nodes with replicas of these topics."""
    held = replicas_by_node(topics)
    known = {node: held[node] for node in held if node in pool.cluster.nodes}
    found = await run_together(
        [
            ask_offsets(pool, known, EARLIEST),
            ask_offsets(pool, known, LATEST),
            ask_sizes(pool, known if with_sizes else {}),
        ]
    )
    (starts, _), (ends, _), (sizes, _) = found
    gone = [node for node in held if node not in known]
    silent = frozenset([*gone, *(node for _, silent in found for node in silent)])
    return Copies(starts=starts, ends=ends, sizes=sizes, silent=silent)


def replicas_by_node(topics: Iterable[MetadataResponseTopic]) -> dict[int, dict[str, list[int]]]:
    held: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for row in topic.partitions:
            for node in row.replica_nodes:
                rows = held.setdefault(node, {}).setdefault(topic.name or "", [])
                rows.append(row.partition_index)
    return held


def leaders_by_node(topics: Iterable[MetadataResponseTopic]) -> dict[int, dict[str, list[int]]]:
    led: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for row in topic.partitions:
            if row.leader_id != NO_LEADER:
                rows = led.setdefault(row.leader_id, {}).setdefault(topic.name or "", [])
                rows.append(row.partition_index)
    return led


def _limit_seconds(wanted: Wanted) -> float:
    count = max((sum(map(len, one.values())) for one in wanted.values()), default=0)
    return ANSWER_SECONDS_MAX + count / COPIES_PER_SECOND


async def ask_offsets(
    pool: ConnectionPool, wanted: Wanted, time: int, *, replica_id: int = ANY_REPLICA
) -> tuple[dict[Held, int], list[int]]:
    """The first offset at or after a time, as each node reports it, and the silent nodes. The
    replica id of a client, -1, gives the offsets that clients see; only leaders serve that."""
    messages = {
        node: ListOffsetsRequest(
            replica_id=replica_id,
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
        for node, topics in wanted.items()
    }
    limit_s = _limit_seconds(wanted)
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


async def ask_sizes(pool: ConnectionPool, wanted: Wanted) -> tuple[dict[Held, int], list[int]]:
    """The bytes of each replica on disk, and the silent nodes."""
    messages = {
        node: DescribeLogDirsRequest(
            topics=tuple(
                DescribableLogDirTopic(topic=name, partitions=tuple(indexes))
                for name, indexes in topics.items()
            )
        )
        for node, topics in wanted.items()
    }
    limit_s = _limit_seconds(wanted)
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


def in_short(followers: Sequence[FollowerLag], *, shown_max: int | None = SHOWN_MAX) -> str | None:
    """``2:0 3:1500``: node and lag, ``?`` where unknown. None without followers."""
    known = [one for one in followers if one.lag is not None]
    if shown_max is not None and len(followers) > shown_max:
        worst = max(known, key=lambda one: one.lag or 0, default=None)
        words = [] if worst is None else [f"{_cell(worst)} at most"]
        unknown = len(followers) - len(known)
        return ", ".join([*words, *([f"{unknown} unknown"] if unknown else [])])
    return " ".join(_cell(one) for one in followers) or None


def _cell(follower: FollowerLag) -> str:
    return f"{follower.node}:{'?' if follower.lag is None else follower.lag}"
