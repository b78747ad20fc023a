"""What planning asks a cluster: which partitions there are, and their offsets.

Answers in terms of the options; all requests of one question go out together. Nodes learn of
changes each in its time: an answer that lacks what was there before is believed only when several
nodes have given it, for by it records would be read twice, or never; a topic that was just made is
not known to all of them either.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pyspark_riverrun.cluster.link import Link
from pyspark_riverrun.offsets import Offsets, Position, Times, place
from pyspark_riverrun.options import BadOption, ReadOptions, Subscription
from riverrun.client.offsets import commit_offsets, offsets_at
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

NO_MATCH = -1
LOOKS_MAX: Final = 5
"""Times to look before something that was there is gone: for more than a second."""
NOT_THERE: Final = (ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
COMMIT_S_MAX: Final = 5.0
"""Lag for others to see is not worth a longer wait."""


class DataLost(Exception):
    """Records that should have been read are not there; the text says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The partitions that a subscription means now."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID | None]

    def has(self, known: Found) -> bool:
        """All partitions of another look, in the same topics."""
        return all(at in self.partitions for at in known.partitions) and all(
            topic_id is None or self.topic_ids.get(topic, topic_id) == topic_id
            for topic, topic_id in known.topic_ids.items()
        )


class Planner:
    """Asks for one reader."""

    def __init__(self, link: Link, options: ReadOptions) -> None:
        self._link = link
        self._options = options

    def find(self, known: Found | None = None) -> Found:
        """Raises KafkaError for a topic or a partition that is not there."""
        known = known or Found(partitions=(), topic_ids={})
        return self._link.ask(_find_known(self._link.pool, self._options.subscription, known))

    def latest(self, partitions: Iterable[TopicPartition], read: Offsets | None = None) -> Offsets:
        """The last stable offset, unless uncommitted records are wanted as well. Up to ``read``
        there were records, as far as we know.
        """
        found = self._ask(dict.fromkeys(partitions, int(Position.LATEST)))
        for looks in range(1, LOOKS_MAX):
            short = [at for at, offset in (read or {}).items() if found.get(at, offset) < offset]
            if not short:
                break
            self._link.ask(_look_elsewhere(self._link.pool, looks, [at.topic for at in short]))
            found |= self._ask(dict.fromkeys(short, int(Position.LATEST)))
        return found

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._ask(dict.fromkeys(partitions, int(Position.EARLIEST)))

    def starting(self, found: Found) -> Offsets:
        """Where a read begins."""
        return self._resolve(found, self._options.starting, is_start=True)

    def ending(self, found: Found) -> Offsets:
        """Where a batch read ends."""
        return self._resolve(found, self._options.ending, is_start=False)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """From outside the group, which is refused while it has members."""
        work = commit_offsets(self._link.pool, group, offsets)
        self._link.ask(asyncio.wait_for(work, COMMIT_S_MAX))

    def _ask(self, times: Mapping[TopicPartition, int]) -> Offsets:
        only = self._options.is_committed_only
        return self._link.ask(offsets_at(self._link.pool, times, is_committed_only=only))

    def _resolve(
        self, found: Found, wanted: Position | Offsets | Times, *, is_start: bool
    ) -> Offsets:
        name = "startingOffsets" if is_start else "endingOffsets"
        if isinstance(wanted, Position):
            return self._ask(dict.fromkeys(found.partitions, int(wanted)))
        if isinstance(wanted, Times):
            return self._at_times(found, wanted, is_start=is_start)
        if sorted(wanted) != sorted(found.partitions):
            missing = [str(at) for at in found.partitions if at not in wanted]
            unknown = [str(at) for at in wanted if at not in found.partitions]
            text = f"{name} must name the partitions that are read, each once"
            text += f"; missing: {', '.join(missing)}" if missing else ""
            text += f"; not read: {', '.join(unknown)}" if unknown else ""
            raise BadOption(text)
        symbolic = self._ask({at: offset for at, offset in wanted.items() if offset < 0})
        exact = {at: symbolic.get(at, offset) for at, offset in wanted.items()}
        if is_start:
            self._check_start(exact)
        return exact

    def _check_start(self, exact: Offsets) -> None:
        """An offset beyond the end would be read when it comes to be, and nobody means that."""
        latest = self.latest(exact)
        for at, offset in exact.items():
            if offset > latest[at]:
                raise DataLost(
                    f"startingOffsets of {at} is {offset}, but the partition ends at {latest[at]}"
                )

    def _at_times(self, found: Found, times: Times, *, is_start: bool) -> Offsets:
        if times.everywhere is None:
            missing = [str(at) for at in found.partitions if at not in times.exact]
            if missing:
                side = "starting" if is_start else "ending"
                text = f"{side}OffsetsByTimestamp names no time for {', '.join(missing)}"
                raise BadOption(text)
        asked = {
            at: times.exact[at] if times.everywhere is None else times.everywhere
            for at in found.partitions
        }
        offsets = self._ask(asked)
        late = [at for at in asked if offsets[at] == NO_MATCH]
        if late and is_start and self._options.when_no_match == "error":
            raise BadOption(
                f"{late[0]} has no record as young as {asked[late[0]]}; "
                "startingOffsetsByTimestampStrategy=latest starts at the end instead"
            )
        return offsets | self.latest(late)


async def _find_known(pool: ConnectionPool, subscription: Subscription, known: Found) -> Found:
    for looks in range(1, LOOKS_MAX):
        try:
            found = await _find(pool, subscription)
            if found.has(known):
                return found
        except KafkaError as error:
            if error.code not in NOT_THERE:
                raise
        await _look_elsewhere(pool, looks, known.topic_ids)
    return await _find(pool, subscription)


async def _look_elsewhere(pool: ConnectionPool, looks: int, topics: Iterable[str]) -> None:
    """Forget what the node said that we asked, and let another one say it a little later."""
    for topic in topics:
        pool.cluster.topics.pop(topic, None)
    await asyncio.sleep(pool.retry.backoff.exact(looks))
    await pool.switch_node()


async def _find(pool: ConnectionPool, subscription: Subscription) -> Found:
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
    return Found(partitions=tuple(sorted(assigned)), topic_ids=found.topic_ids)


async def _matching(pool: ConnectionPool, pattern: re.Pattern[str]) -> list[MetadataResponseTopic]:
    """As in the connector the whole name must match, and Kafka's own topics never do."""
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
            # Not the code that would be tried again: a name that is wrong stays wrong.
            text = f"there is no topic {row.name}; create it, or correct the option subscribe"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        if row.error_code is not ErrorCode.NONE:
            raise KafkaError(row.error_code, f"topic {row.name}: {row.error_code.name}")
    return rows


def _found(rows: Iterable[MetadataResponseTopic]) -> Found:
    listed = list(rows)
    partitions = [
        place(row.name or "", one.partition_index) for row in listed for one in row.partitions
    ]
    return Found(
        partitions=tuple(sorted(partitions)),
        topic_ids={row.name or "": row.topic_id for row in listed},
    )
