"""What planning asks a cluster: which partitions there are, and their offsets.

Answers in terms of the options; all requests of one question go out together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from pyspark_riverrun.link import Link
from pyspark_riverrun.offsets import Offsets, Position, Times, place
from pyspark_riverrun.options import BadOption, ReadOptions, Subscription
from riverrun.client.offsets import commit_offsets, offsets_at
from riverrun.client.pool import Pool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

NO_MATCH = -1


class DataLost(Exception):
    """Records that should have been read are not there; the text says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The partitions that a subscription means now."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID | None]


class Planner:
    """Asks for one reader."""

    def __init__(self, link: Link, options: ReadOptions) -> None:
        self._link = link
        self._options = options

    def find(self) -> Found:
        """Raises KafkaError for a topic or a partition that is not there."""
        return self._link.ask(_find(self._link.pool, self._options.subscription))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The last stable offset, unless uncommitted records are wanted as well."""
        return self._ask(dict.fromkeys(partitions, int(Position.LATEST)))

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
        self._link.ask(commit_offsets(self._link.pool, group, offsets))

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


async def _find(pool: Pool, subscription: Subscription) -> Found:
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


async def _matching(pool: Pool, pattern: re.Pattern[str]) -> list[MetadataResponseTopic]:
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


async def _known(pool: Pool, names: tuple[str, ...]) -> list[MetadataResponseTopic]:
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
