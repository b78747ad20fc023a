"""Deletes the oldest records of partitions, up to an offset or a time (DeleteRecords)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from riverrun.admin.groups.admin import Target, find_partitions, new_offset
from riverrun.admin.tables import Table
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from riverrun.wire.messages.delete_records_response import DeleteRecordsResponse

TIMEOUT_MS = 30_000
SHOWN_MAX = 5
REASONS = {
    ErrorCode.POLICY_VIOLATION: "records can only be deleted from a topic with "
    "cleanup.policy=delete; this one is compacted",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "records of an internal topic cannot be deleted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrim:
    """The records [start, before) of a partition, which are to be deleted."""

    partition: TopicPartition
    start: int
    before: int
    end: int
    failure: str | None = None

    @property
    def records(self) -> int:
        """Compaction and transactions leave gaps, so there may be fewer."""
        return self.before - self.start

    def described(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic, "partition": self.partition.partition,
            "old_start_offset": self.start, "start_offset": self.before,
            "end_offset": self.end, "deleted_records": self.records, "error": self.failure,
        }  # fmt: skip


async def plan_trim(
    pool: ConnectionPool, wanted: Mapping[str, frozenset[int] | None], target: Target
) -> list[PartitionTrim]:
    """The effect on each partition. An offset outside the log means its nearest end; see
    ``beyond_end``."""
    places = await find_partitions(pool, wanted)
    starts = await offsets_at(pool, dict.fromkeys(places, EARLIEST))
    ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
    times: dict[TopicPartition, int] = {}
    if target.time is not None:
        times = await offsets_at(pool, dict.fromkeys(places, target.time))
    return [
        PartitionTrim(
            partition=at,
            start=starts[at],
            before=new_offset(
                target, old=None, start=starts[at], end=ends[at], at_time=times.get(at)
            ),
            end=ends[at],
        )
        for at in places
    ]


def beyond_end(trims: Sequence[PartitionTrim], target: Target) -> str | None:
    """Why an offset after the end of a partition is refused: it is most likely a mistake, and
    would delete all records."""
    offset = target.offset
    if offset is None:
        return None
    beyond = [f"{trim.partition} ends at {trim.end}" for trim in trims if offset > trim.end]
    if not beyond:
        return None
    more = f" and {len(beyond) - SHOWN_MAX} more" if len(beyond) > SHOWN_MAX else ""
    return (
        f"--before {offset} is beyond the end: {', '.join(beyond[:SHOWN_MAX])}{more}; nothing was "
        "deleted\n  Delete all records with --before end, or choose partitions with TOPIC:0,1."
    )


async def delete_records(
    pool: ConnectionPool, trims: Sequence[PartitionTrim]
) -> list[PartitionTrim]:
    """Delete the records; failures are in the result. A repeated request does no harm, because the
    offsets are fixed."""
    left = {trim.partition: trim.before for trim in trims if trim.records > 0}
    failures: dict[TopicPartition, str] = {}

    async def once() -> None:
        by_leader: dict[int, list[TopicPartition]] = {}
        for at in left:
            leader = await pool.leader(at.topic, at.partition)
            by_leader.setdefault(leader, []).append(at)
        for rows in await run_together(
            _delete(pool, leader, {at: left[at] for at in places})
            for leader, places in by_leader.items()
        ):
            for at, code in rows.items():
                if code in RETRIABLE:
                    continue
                if code is not ErrorCode.NONE:
                    failures[at] = REASONS.get(code, code.name)
                left.pop(at, None)
        if left:
            text = f"the leader of {min(left)} did not delete the records"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)

    if left:
        await pool.try_again(once)
    return [
        replace(trim, failure=failures[trim.partition], before=trim.start)
        if trim.partition in failures
        else trim
        for trim in trims
    ]


async def _delete(
    pool: ConnectionPool, leader: int, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, ErrorCode]:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for at, offset in offsets.items():
        row = DeleteRecordsPartition(partition_index=at.partition, offset=offset)
        topics.setdefault(at.topic, []).append(row)
    request = DeleteRecordsRequest(
        topics=tuple(
            DeleteRecordsTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        ),
        timeout_ms=TIMEOUT_MS,
    )
    answer: DeleteRecordsResponse = await pool.request_node(
        leader, ApiKey.DELETE_RECORDS, request, timeout_s=TIMEOUT_MS / 1000 + pool.request_timeout_s
    )
    return {
        TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index)): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }


def trims_table(trims: Sequence[PartitionTrim]) -> Table:
    return Table(
        columns=("topic", "partition", "old start", "new start", "end", "deleted records"),
        rows=[
            (
                trim.partition.topic, trim.partition.partition, trim.start, trim.before, trim.end,
                trim.records,
            )
            for trim in trims
        ],
    )  # fmt: skip
