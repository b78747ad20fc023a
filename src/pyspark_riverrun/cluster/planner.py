"""Requests of planning to a cluster: which partitions exist, and their offsets.

Nodes replay metadata at different speeds. A response that lacks a known partition is accepted only
after several nodes have repeated it, because otherwise records would be read twice or never. A new
topic is not known to all nodes at once either.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pyspark_riverrun.cluster.link import BrokerLink
from pyspark_riverrun.offsets import Offsets, Position, Timestamps, topic_partition
from pyspark_riverrun.options import BadOption, ReadOptions, Subscription
from riverrun.client.offsets import commit_offsets, offsets_at
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

NO_MATCH = -1
ATTEMPTS_MAX: Final = 5
"""Lookups before a known partition or record counts as deleted. They take more than a second."""
NOT_THERE: Final = (ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
COMMIT_S_MAX: Final = 5.0
"""Publishing the lag is not worth a longer wait."""


class DataLost(Exception):
    """Records that should be read no longer exist. The text names them and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedPartitions:
    """The partitions that match a subscription now."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID | None]

    def includes(self, known: SubscribedPartitions) -> bool:
        """Whether all known partitions still exist, in topics with the same ids."""
        return all(at in self.partitions for at in known.partitions) and all(
            topic_id is None or self.topic_ids.get(topic, topic_id) == topic_id
            for topic, topic_id in known.topic_ids.items()
        )


class Planner:
    """Sends the requests of one reader."""

    def __init__(self, link: BrokerLink, options: ReadOptions) -> None:
        self._link = link
        self._options = options

    def find(self, known: SubscribedPartitions | None = None) -> SubscribedPartitions:
        """Raises KafkaError if a topic or a partition does not exist."""
        known = known or SubscribedPartitions(partitions=(), topic_ids={})
        return self._link.run(_find_known(self._link.pool, self._options.subscription, known))

    def latest(self, partitions: Iterable[TopicPartition], read: Offsets | None = None) -> Offsets:
        """The last stable offset, or the high watermark if uncommitted records are read too.

        ``read`` has offsets up to which records existed before. A node that reports less is not
        believed at once.
        """
        found = self._offsets_at(dict.fromkeys(partitions, int(Position.LATEST)))
        for attempt in range(1, ATTEMPTS_MAX):
            short = [at for at, offset in (read or {}).items() if found.get(at, offset) < offset]
            if not short:
                break
            self._link.run(_use_other_node(self._link.pool, attempt, [at.topic for at in short]))
            found |= self._offsets_at(dict.fromkeys(short, int(Position.LATEST)))
        return found

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._offsets_at(dict.fromkeys(partitions, int(Position.EARLIEST)))

    def starting(self, found: SubscribedPartitions) -> Offsets:
        """Where a read starts."""
        return self._resolve(found, self._options.starting, is_start=True)

    def ending(self, found: SubscribedPartitions) -> Offsets:
        """Where a batch read ends."""
        return self._resolve(found, self._options.ending, is_start=False)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit without being a member, which is refused while the group has members."""
        work = commit_offsets(self._link.pool, group, offsets)
        self._link.run(asyncio.wait_for(work, COMMIT_S_MAX))

    def _offsets_at(self, times: Mapping[TopicPartition, int]) -> Offsets:
        only = self._options.is_committed_only
        return self._link.run(offsets_at(self._link.pool, times, is_committed_only=only))

    def _resolve(
        self,
        found: SubscribedPartitions,
        wanted: Position | Offsets | Timestamps,
        *,
        is_start: bool,
    ) -> Offsets:
        name = "startingOffsets" if is_start else "endingOffsets"
        if isinstance(wanted, Position):
            return self._offsets_at(dict.fromkeys(found.partitions, int(wanted)))
        if isinstance(wanted, Timestamps):
            return self._at_times(found, wanted, is_start=is_start)
        if sorted(wanted) != sorted(found.partitions):
            missing = [str(at) for at in found.partitions if at not in wanted]
            unknown = [str(at) for at in wanted if at not in found.partitions]
            text = f"{name} must name each partition that is read exactly once"
            text += f"; missing: {', '.join(missing)}" if missing else ""
            text += f"; not read: {', '.join(unknown)}" if unknown else ""
            raise BadOption(text)
        symbolic = self._offsets_at({at: offset for at, offset in wanted.items() if offset < 0})
        exact = {at: symbolic.get(at, offset) for at, offset in wanted.items()}
        if is_start:
            self._check_start(exact)
        return exact

    def _check_start(self, exact: Offsets) -> None:
        """Reject a start beyond the log end. Waiting for it to exist is never intended."""
        latest = self.latest(exact)
        for at, offset in exact.items():
            if offset > latest[at]:
                raise DataLost(
                    f"startingOffsets of {at} is {offset}, but the partition ends at {latest[at]}"
                )

    def _at_times(
        self, found: SubscribedPartitions, times: Timestamps, *, is_start: bool
    ) -> Offsets:
        if times.everywhere is None:
            missing = [str(at) for at in found.partitions if at not in times.exact]
            if missing:
                side = "starting" if is_start else "ending"
                text = f"{side}OffsetsByTimestamp has no time for {', '.join(missing)}"
                raise BadOption(text)
        wanted = {
            at: times.exact[at] if times.everywhere is None else times.everywhere
            for at in found.partitions
        }
        offsets = self._offsets_at(wanted)
        late = [at for at in wanted if offsets[at] == NO_MATCH]
        if late and is_start and self._options.when_no_match == "error":
            raise BadOption(
                f"{late[0]} has no record at or after {wanted[late[0]]}; "
                "startingOffsetsByTimestampStrategy=latest starts at the end instead"
            )
        return offsets | self.latest(late)


async def _find_known(
    pool: ConnectionPool, subscription: Subscription, known: SubscribedPartitions
) -> SubscribedPartitions:
    for attempt in range(1, ATTEMPTS_MAX):
        try:
            found = await _find(pool, subscription)
            if found.includes(known):
                return found
        except KafkaError as error:
            if error.code not in NOT_THERE:
                raise
        await _use_other_node(pool, attempt, known.topic_ids)
    return await _find(pool, subscription)


async def _use_other_node(pool: ConnectionPool, attempt: int, topics: Iterable[str]) -> None:
    """Drop cached metadata, back off, and send the next request to another node."""
    for topic in topics:
        pool.cluster.topics.pop(topic, None)
    await asyncio.sleep(pool.retry.backoff.exact(attempt))
    await pool.switch_node()


async def _find(pool: ConnectionPool, subscription: Subscription) -> SubscribedPartitions:
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        return _found(await pool.try_again(lambda: _matching(pool, pattern)))
    assigned = subscription.assignment
    names = subscription.topics or tuple(dict.fromkeys(at.topic for at in assigned or ()))
    rows = await pool.try_again(lambda: _known(pool, names))
    found = _found(rows)
    if assigned is None:
        return found
    for at in assigned:
        if at not in found.partitions:
            text = f"assign: topic {at.topic} has no partition {at.partition}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return SubscribedPartitions(partitions=tuple(sorted(assigned)), topic_ids=found.topic_ids)


async def _matching(pool: ConnectionPool, pattern: re.Pattern[str]) -> list[MetadataResponseTopic]:
    """As in the connector, the whole name must match, and internal topics never do."""
    rows = [
        row
        for row in (await pool.metadata(None)).topics
        if row.name is not None and not row.is_internal and pattern.fullmatch(row.name)
    ]
    for row in rows:
        if row.error_code is not ErrorCode.NONE:
            raise KafkaError(row.error_code, f"topic {row.name}: {row.error_code.name}")
    return rows


async def _known(pool: ConnectionPool, names: tuple[str, ...]) -> list[MetadataResponseTopic]:
    rows = list((await pool.metadata(names)).topics)
    for row in rows:
        if row.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Not a retriable code: a wrong name stays wrong.
            text = f"topic {row.name} does not exist; create it, or correct the option subscribe"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        if row.error_code is not ErrorCode.NONE:
            raise KafkaError(row.error_code, f"topic {row.name}: {row.error_code.name}")
    return rows


def _found(rows: Iterable[MetadataResponseTopic]) -> SubscribedPartitions:
    listed = list(rows)
    partitions = [
        topic_partition(row.name or "", one.partition_index)
        for row in listed
        for one in row.partitions
    ]
    return SubscribedPartitions(
        partitions=tuple(sorted(partitions)),
        topic_ids={row.name or "": row.topic_id for row in listed},
    )
