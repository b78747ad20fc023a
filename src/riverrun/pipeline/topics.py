"""What a driver asks the cluster: ids and partitions of topics, and topics that are to be made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from riverrun.client.offsets import offsets_at
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
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse

Result = TypeVar("Result")

CLIENT_ID = "riverrun-pipeline"
TABLE_SETTING = "riverrun.table"
TOPIC_RESOURCE = 2
NO_TABLE = "none"
BY_DEFAULT = -1
TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Some topics as the cluster knows them; those that it does not know are left out."""

    ids: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, list[int]] = field(default_factory=dict)


def ask(bootstrap: str, question: Callable[[ConnectionPool], Awaitable[Result]]) -> Result:
    """One question, over connections of its own: drivers ask seldom and from many threads."""

    async def asked() -> Result:
        async with ConnectionPool(parse_bootstrap(bootstrap), client_id=CLIENT_ID) as pool:
            return await question(pool)

    return asyncio.run(asked())


def look_up(bootstrap: str, names: Sequence[str]) -> Topics:
    """KafkaError or OSError when the cluster does not answer within the client's limits."""

    async def question(pool: ConnectionPool) -> Topics:
        async def once() -> Topics:
            found = Topics()
            for topic in (await pool.metadata(list(names))).topics:
                if topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                if topic.error_code is not ErrorCode.NONE:
                    raise KafkaError(topic.error_code, f"topic {topic.name}")
                assert topic.name is not None, "we asked by name"
                found.ids[topic.name] = str(topic.topic_id)
                found.partitions[topic.name] = sorted(p.partition_index for p in topic.partitions)
            return found

        return await pool.try_again(once)

    return ask(bootstrap, question)


def first_records(
    bootstrap: str, names: Sequence[str], count_max: int
) -> dict[TopicPartition, tuple[int, int]]:
    """By partition the offsets between which its first records lie."""
    topics = look_up(bootstrap, names)

    async def question(pool: ConnectionPool) -> dict[TopicPartition, tuple[int, int]]:
        places = [
            TopicPartition(TopicName(name), PartitionIndex(index))
            for name, indexes in topics.partitions.items()
            for index in indexes
        ]
        starts = await offsets_at(pool, dict.fromkeys(places, EARLIEST))
        ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
        return {at: (starts[at], min(ends[at], starts[at] + count_max)) for at in places}

    return ask(bootstrap, question)


def latest_offsets(
    bootstrap: str, partitions: Mapping[str, Sequence[int]], *, is_committed_only: bool
) -> dict[str, dict[int, int]]:
    """Where the next record of each partition will lie, as its readers see it."""
    places = [
        TopicPartition(TopicName(name), PartitionIndex(index))
        for name, indexes in partitions.items()
        for index in indexes
    ]

    async def question(pool: ConnectionPool) -> dict[TopicPartition, int]:
        times = dict.fromkeys(places, LATEST)
        return await offsets_at(pool, times, is_committed_only=is_committed_only)

    found: dict[str, dict[int, int]] = {}
    for at, offset in ask(bootstrap, question).items():
        found.setdefault(at.topic, {})[at.partition] = offset
    return found


def make_topic(
    bootstrap: str,
    name: str,
    *,
    partitions: int = BY_DEFAULT,
    settings: dict[str, str] | None = None,
) -> bool:
    """Whether the topic is new; one that exists is left as it is."""
    configs = tuple(
        CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()
    )
    message = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=BY_DEFAULT,
                assignments=(),
                configs=configs,
            ),
        ),
        timeout_ms=TIMEOUT_MS,
    )

    async def question(pool: ConnectionPool) -> bool:
        async def once() -> bool:
            answer: CreateTopicsResponse = await pool.request(ApiKey.CREATE_TOPICS, message)
            row = answer.topics[0]
            if row.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            if row.error_code is not ErrorCode.NONE:
                text = f"topic {name}: {row.error_message or row.error_code.name}"
                raise KafkaError(row.error_code, text)
            return True

        return await pool.try_again(once)

    return ask(bootstrap, question)


async def ask_table_topics(pool: ConnectionPool) -> dict[str, str]:
    """Topics that are to be kept as tables, with the format."""
    names = sorted(
        topic.name
        for topic in (await pool.metadata(None)).topics
        if topic.name is not None and not topic.is_internal
    )
    if not names:
        return {}
    message = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=name,
                configuration_keys=(TABLE_SETTING,),
            )
            for name in names
        )
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    return {
        result.resource_name: row.value
        for result in answer.results
        for row in result.configs
        if row.name == TABLE_SETTING and row.value not in (None, NO_TABLE)
    }
