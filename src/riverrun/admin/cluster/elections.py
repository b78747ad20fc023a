"""Leader elections on request: the preferred replica, or any replica if none is in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from riverrun.admin.cluster.replica_lag import place_of
from riverrun.admin.requests import NotFound, check, find_topic
from riverrun.admin.tables import Bad, Cell, Good, Table
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from riverrun.wire.messages.elect_leaders_response import ElectLeadersResponse
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

PREFERRED = 0
UNCLEAN = 1
NO_NODE = -1
TIMEOUT_MS = 30_000
REQUEST_PARTITIONS_MAX = 1000
"""A controller refuses requests with more than 10,000 records."""
LOOKS_MAX = 20
LOOK_EVERY_SECONDS = 0.1
"""A node learns of a new leader slightly after the controller has elected it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionElection:
    """A partition that needs an election, and its result."""

    partition: TopicPartition
    old: int | None
    preferred: int
    new: int | None = None
    failure: str | None = None

    def described(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic, "partition": self.partition.partition,
            "old_leader": self.old, "leader": self.new, "preferred": self.preferred,
            "error": self.failure,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionPlan:
    is_unclean: bool
    changes: tuple[PartitionElection, ...]
    partition_count: int
    """Partitions that were looked at."""


async def plan_elections(
    pool: ConnectionPool, wanted: Mapping[str, frozenset[int] | None], *, is_unclean: bool
) -> ElectionPlan:
    """The partitions (of the wanted topics, or of all) that need an election."""
    topics: Sequence[MetadataResponseTopic]
    if wanted:
        topics = [await find_topic(pool, name, may_be_created=False) for name in wanted]
        for topic in topics:
            there = [row.partition_index for row in topic.partitions]
            for index in sorted(wanted[topic.name or ""] or ()):
                if index not in there:
                    raise NotFound(f"topic {topic.name} has no partition {index}")
    else:
        topics = sorted((await pool.metadata(None)).topics, key=lambda topic: topic.name or "")
    return planned(topics, wanted, is_unclean=is_unclean)


def planned(
    topics: Iterable[MetadataResponseTopic],
    wanted: Mapping[str, frozenset[int] | None],
    *,
    is_unclean: bool,
) -> ElectionPlan:
    changes = []
    count = 0
    for topic in topics:
        indexes = wanted.get(topic.name or "")
        for row in sorted(topic.partitions, key=lambda row: row.partition_index):
            if indexes is not None and row.partition_index not in indexes:
                continue
            count += 1
            preferred = row.replica_nodes[0]
            is_done = row.leader_id != NO_NODE if is_unclean else row.leader_id == preferred
            if not is_done:
                changes.append(
                    PartitionElection(
                        partition=place_of(topic, row),
                        old=None if row.leader_id == NO_NODE else row.leader_id,
                        preferred=preferred,
                    )
                )
    return ElectionPlan(is_unclean=is_unclean, changes=tuple(changes), partition_count=count)


async def elect(pool: ConnectionPool, plan: ElectionPlan) -> list[PartitionElection]:
    """Request the elections; the result has the new leaders, and the reasons of failures."""
    failures: dict[TopicPartition, str] = {}
    for at in range(0, len(plan.changes), REQUEST_PARTITIONS_MAX):
        some = plan.changes[at : at + REQUEST_PARTITIONS_MAX]
        failures |= await _request(pool, some, is_unclean=plan.is_unclean)
    elected = [change for change in plan.changes if change.partition not in failures]
    leaders = await _new_leaders(pool, elected)
    return [
        replace(
            change,
            new=leaders.get(change.partition, change.old),
            failure=failures.get(change.partition),
        )
        for change in plan.changes
    ]


async def _request(
    pool: ConnectionPool, changes: Sequence[PartitionElection], *, is_unclean: bool
) -> dict[TopicPartition, str]:
    """Request elections in these partitions. Returns the reasons of failures."""
    topics: dict[str, list[int]] = {}
    for change in changes:
        topics.setdefault(change.partition.topic, []).append(change.partition.partition)
    request = ElectLeadersRequest(
        topic_partitions=tuple(
            TopicPartitions(topic=name, partitions=tuple(indexes))
            for name, indexes in topics.items()
        ),
        timeout_ms=TIMEOUT_MS,
        election_type=UNCLEAN if is_unclean else PREFERRED,
    )
    answer: ElectLeadersResponse = await pool.request(
        ApiKey.ELECT_LEADERS, request, timeout_s=TIMEOUT_MS / 1000
    )
    check(answer.error_code, None, "election")
    return {
        TopicPartition(TopicName(topic.topic), PartitionIndex(row.partition_id)): (
            row.error_message or row.error_code.name
        )
        for topic in answer.replica_election_results
        for row in topic.partition_result
        # The cluster balances leaders by itself and may have been faster.
        if row.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    }


async def _new_leaders(
    pool: ConnectionPool, elected: Sequence[PartitionElection]
) -> dict[TopicPartition, int]:
    names = sorted({change.partition.topic for change in elected})
    if not names:
        return {}
    for _ in range(LOOKS_MAX):
        leaders = {
            place_of(topic, row): row.leader_id
            for topic in (await pool.metadata(names)).topics
            for row in topic.partitions
            if row.leader_id != NO_NODE
        }
        if all(leaders.get(change.partition, change.old) != change.old for change in elected):
            break
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    return leaders


def elections_table(changes: Iterable[PartitionElection]) -> Table:
    def row(change: PartitionElection) -> tuple[Cell, ...]:
        result = Good("elected") if change.failure is None else Bad(change.failure)
        return (
            change.partition.topic, change.partition.partition, _named(change.old),
            _named(change.new), str(change.preferred), result,
        )  # fmt: skip

    columns = ("topic", "partition", "old leader", "leader", "preferred", "result")
    return Table(columns=columns, rows=[row(change) for change in changes])


def _named(node: int | None) -> str:
    return "none" if node is None else str(node)
