"""Requests of a driver to the cluster: topic ids, partitions, offsets, and topic creation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from riverrun.admin.topics.admin import ask_setting
from riverrun.cli.support.client_config import security_of
from riverrun.client.offsets import commit_offsets, offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse

Result = TypeVar("Result")

CLIENT_ID = "riverrun-pipeline"
TABLE_SETTING = "riverrun.table"
NO_TABLE = "none"
BROKER_DEFAULT = -1
TIMEOUT_MS = 30_000
COMMIT_SECONDS_MAX = 5.0
"""Publishing the lag is not worth a longer wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Ids and partitions by topic name. Topics that do not exist are left out."""

    ids: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, list[int]] = field(default_factory=dict)


def run_request(bootstrap: str, request: Callable[[ConnectionPool], Awaitable[Result]]) -> Result:
    """Run one request over its own connections: drivers send few, and from many threads."""

    async def connected() -> Result:
        async with ConnectionPool(
            parse_bootstrap(bootstrap), client_id=CLIENT_ID, security=security_of(bootstrap)
        ) as pool:
            return await request(pool)

    return asyncio.run(connected())


def look_up_topics(bootstrap: str, names: Sequence[str]) -> Topics:
    """Raises KafkaError or OSError if the cluster does not respond within the client's limits."""

    async def request(pool: ConnectionPool) -> Topics:
        async def once() -> Topics:
            found = Topics()
            for topic in (await pool.metadata(list(names))).topics:
                if topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                if topic.error_code is not ErrorCode.NONE:
                    raise KafkaError(topic.error_code, f"topic {topic.name}")
                assert topic.name is not None, "the request was by name"
                found.ids[topic.name] = str(topic.topic_id)
                found.partitions[topic.name] = sorted(p.partition_index for p in topic.partitions)
            return found

        return await pool.try_again(once)

    return run_request(bootstrap, request)


def topic_id(bootstrap: str, name: str) -> str:
    """The id of a topic that exists, although a node may not know it yet."""

    async def request(pool: ConnectionPool) -> str:
        async def once() -> str:
            row = (await pool.metadata([name])).topics[0]
            if row.error_code is not ErrorCode.NONE:
                raise KafkaError(row.error_code, f"topic {name}: {row.error_code.name}")
            return str(row.topic_id)

        return await pool.try_again(once)

    return run_request(bootstrap, request)


def first_record_ranges(
    bootstrap: str, names: Sequence[str], count_max: int
) -> dict[TopicPartition, tuple[int, int]]:
    """The offset range [start, end) of the first records, by partition."""
    topics = look_up_topics(bootstrap, names)

    async def request(pool: ConnectionPool) -> dict[TopicPartition, tuple[int, int]]:
        wanted = [
            TopicPartition(TopicName(name), PartitionIndex(index))
            for name, indexes in topics.partitions.items()
            for index in indexes
        ]
        starts = await offsets_at(pool, dict.fromkeys(wanted, EARLIEST))
        ends = await offsets_at(pool, dict.fromkeys(wanted, LATEST))
        return {at: (starts[at], min(ends[at], starts[at] + count_max)) for at in wanted}

    return run_request(bootstrap, request)


def latest_offsets(
    bootstrap: str, partitions: Mapping[str, Sequence[int]], *, is_committed_only: bool
) -> dict[str, dict[int, int]]:
    """The log end offset by topic and partition, or the last stable offset."""
    return _offsets_at(bootstrap, partitions, LATEST, is_committed_only=is_committed_only)


def earliest_offsets(
    bootstrap: str, partitions: Mapping[str, Sequence[int]]
) -> dict[str, dict[int, int]]:
    """The log start offset by topic and partition."""
    return _offsets_at(bootstrap, partitions, EARLIEST, is_committed_only=False)


def _offsets_at(
    bootstrap: str,
    partitions: Mapping[str, Sequence[int]],
    timestamp: int,
    *,
    is_committed_only: bool,
) -> dict[str, dict[int, int]]:
    wanted = [
        TopicPartition(TopicName(name), PartitionIndex(index))
        for name, indexes in partitions.items()
        for index in indexes
    ]

    async def request(pool: ConnectionPool) -> dict[TopicPartition, int]:
        times = dict.fromkeys(wanted, timestamp)
        return await offsets_at(pool, times, is_committed_only=is_committed_only)

    found: dict[str, dict[int, int]] = {}
    for at, offset in run_request(bootstrap, request).items():
        found.setdefault(at.topic, {})[at.partition] = offset
    return found


def commit_positions(bootstrap: str, group: str, positions: Mapping[str, int]) -> None:
    """Commit offsets by partition name, such as ``clicks-0``, without being a member."""
    offsets: dict[TopicPartition, int] = {}
    for name, offset in positions.items():
        topic, _, index = name.rpartition("-")
        offsets[TopicPartition(TopicName(topic), PartitionIndex(int(index)))] = offset

    async def request(pool: ConnectionPool) -> None:
        await asyncio.wait_for(commit_offsets(pool, group, offsets), COMMIT_SECONDS_MAX)

    run_request(bootstrap, request)


def create_topic(
    bootstrap: str,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    settings: dict[str, str] | None = None,
) -> bool:
    """Create a topic. Returns False, and changes nothing, if it exists."""
    configs = tuple(
        CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()
    )
    message = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=BROKER_DEFAULT,
                assignments=(),
                configs=configs,
            ),
        ),
        timeout_ms=TIMEOUT_MS,
    )

    async def request(pool: ConnectionPool) -> bool:
        async def once() -> bool:
            response: CreateTopicsResponse = await pool.request(ApiKey.CREATE_TOPICS, message)
            row = response.topics[0]
            if row.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            if row.error_code is not ErrorCode.NONE:
                text = f"topic {name}: {row.error_message or row.error_code.name}"
                raise KafkaError(row.error_code, text)
            return True

        return await pool.try_again(once)

    return run_request(bootstrap, request)


async def find_table_topics(pool: ConnectionPool) -> dict[str, str]:
    """Table format by topic, for topics with the setting ``riverrun.table``."""
    names = sorted(
        topic.name
        for topic in (await pool.metadata(None)).topics
        if topic.name is not None and not topic.is_internal
    )
    found = await ask_setting(pool, names, TABLE_SETTING)
    return {topic: table for topic, table in found.items() if table != NO_TABLE}
