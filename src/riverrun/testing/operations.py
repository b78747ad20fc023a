"""Topics, records and groups of a test cluster, through the protocol alone.

Each call opens its own connections. It therefore works before, during and after faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from riverrun.client.fetcher import Fetcher
from riverrun.client.group_description import describe_group_of_any_type
from riverrun.client.offsets import committed_offsets, offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ClusterUnreachable, ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.ports.clock import SystemClock
from riverrun.records.batch import NO_TIMESTAMP
from riverrun.records.record import Headers, NewRecord
from riverrun.testing.processes import Settings, setting_text
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import DeleteTopicsResponse
from riverrun.wire.messages.list_groups_request import ListGroupsRequest
from riverrun.wire.messages.list_groups_response import ListGroupsResponse
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from riverrun.wire.messages.metadata_response import MetadataResponse, MetadataResponseTopic

REQUEST_SECONDS_MAX = 5.0
CONNECT_SECONDS_MAX = 2.0
NODE_SECONDS_MAX = 1.0
"""A paused node responds to nothing, and the responses of the others are enough."""
OPERATION_SECONDS_MAX = 30.0
REACH_SECONDS_MAX = 4.0
REACH_PAUSE_SECONDS = 0.1
POLL_SECONDS = 0.01
TOPIC_NAME_CHARACTERS_MAX = 200
DEFAULT_REPLICATION_FACTOR = -1

Value = str | bytes | None | NewRecord
"""Text is encoded as UTF-8; None is a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedRecord:
    """A record with its place."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def text(self) -> str:
        """The value as UTF-8 text; empty for a tombstone."""
        return (self.value or b"").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """A group with its members and committed offsets."""

    name: str
    state: str
    members: tuple[str, ...]
    """Member ids."""
    offsets: Mapping[TopicPartition, int]
    """Committed offsets by partition."""
    lag: int
    """Records after the committed offsets."""


def open_pool(bootstrap: str) -> ConnectionPool:
    return ConnectionPool(
        parse_bootstrap(bootstrap),
        client_id="riverrun-testing",
        request_timeout_s=REQUEST_SECONDS_MAX,
        connect_timeout_s=CONNECT_SECONDS_MAX,
        retry=RetryPolicy(tries_max=200, total_s_max=OPERATION_SECONDS_MAX, backoff_s=0.02),
    )


async def check_reachable(bootstrap: str) -> None:
    """Wait until a node answers. Raises OSError if none does within ``REACH_SECONDS_MAX``."""
    failure = f"no node answers within {REACH_SECONDS_MAX:g} s"
    async with open_pool(bootstrap) as pool:
        try:
            async with asyncio.timeout(REACH_SECONDS_MAX):
                while True:
                    try:
                        await pool.any_connection()
                        return
                    except ClusterUnreachable as error:
                        failure = str(error)
                    await asyncio.sleep(REACH_PAUSE_SECONDS)
        except TimeoutError:
            raise ClusterUnreachable(failure) from None


def unique_name(prefix: str) -> str:
    """A topic name that no other test has."""
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", prefix)[:TOPIC_NAME_CHARACTERS_MAX]
    return f"{plain.strip('-')}-{uuid.uuid4().hex[:8]}"


async def create_topic(
    pool: ConnectionPool,
    name: str,
    *,
    partitions: int,
    replication_factor: int = DEFAULT_REPLICATION_FACTOR,
    config: Settings,
) -> None:
    """Create a topic and wait until all nodes list it with its leaders."""
    configs = tuple(
        CreatableTopicConfig(name=key, value=setting_text(value)) for key, value in config.items()
    )
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=configs,
    )
    message = CreateTopicsRequest(topics=(topic,), timeout_ms=int(OPERATION_SECONDS_MAX * 1000))
    # Not repeated: after a lost response, the second request would report an existing topic.
    response: CreateTopicsResponse = await pool.request(
        ApiKey.CREATE_TOPICS, message, is_repeatable=False, timeout_s=OPERATION_SECONDS_MAX
    )
    row = response.topics[0]
    _check(row.error_code, f"topic {name}: {row.error_message or row.error_code.name}")
    await _wait_until(
        lambda: _is_known(pool, name), OPERATION_SECONDS_MAX, f"all nodes know topic {name}"
    )


async def _is_known(pool: ConnectionPool, name: str) -> bool:
    """Whether all nodes that the cluster lists know the leaders of the topic."""
    try:
        rows = await _topic_by_node(pool, name)
    except (KafkaError, OSError):
        return False
    # A node that ended is listed until its session times out.
    return sorted(rows) == sorted(pool.cluster.nodes) and all(map(_has_leaders, rows.values()))


async def _topic_by_node(pool: ConnectionPool, name: str) -> dict[int, MetadataResponseTopic]:
    """The topic's metadata at each node that responds."""
    message = MetadataRequest(
        topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False
    )
    responses = await _ask_all(pool, message)
    return {node: response.topics[0] for node, response in responses.items()}


async def _ask_all(pool: ConnectionPool, message: MetadataRequest) -> dict[int, MetadataResponse]:
    """The responses of all nodes that respond."""
    found: dict[int, MetadataResponse] = {}

    async def ask(node: int) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(NODE_SECONDS_MAX):
                found[node] = await pool.request_node(node, ApiKey.METADATA, message)

    await pool.metadata(())
    await run_together(ask(node) for node in sorted(pool.cluster.nodes))
    return found


async def _find_topic(pool: ConnectionPool, name: str) -> MetadataResponseTopic:
    """The newest metadata that any node has; the pool uses it as well. A node that was paused
    may name an old leader for a moment, perhaps itself."""

    async def once() -> MetadataResponseTopic:
        rows = list((await _topic_by_node(pool, name)).values())
        known = [row for row in rows if row.error_code is ErrorCode.NONE]
        if not known:
            code = rows[0].error_code if rows else ErrorCode.LEADER_NOT_AVAILABLE
            raise KafkaError(code, f"topic {name}: {code.name}")
        newest = max(known, key=lambda row: sum(each.leader_epoch for each in row.partitions))
        pool.cluster.topics[name] = newest
        return newest

    return await pool.try_again(once)


def _has_leaders(topic: MetadataResponseTopic) -> bool:
    return topic.error_code is ErrorCode.NONE and all(
        row.leader_id >= 0 for row in topic.partitions
    )


async def delete_topic(pool: ConnectionPool, name: str) -> None:
    message = DeleteTopicsRequest(
        topic_names=(name,),
        topics=(DeleteTopicState(name=name, topic_id=None),),
        timeout_ms=int(OPERATION_SECONDS_MAX * 1000),
    )
    response: DeleteTopicsResponse = await pool.request(
        ApiKey.DELETE_TOPICS, message, is_repeatable=False, timeout_s=OPERATION_SECONDS_MAX
    )
    row = response.responses[0]
    _check(row.error_code, f"topic {name}: {row.error_message or row.error_code.name}")


async def produce(
    pool: ConnectionPool, topic: str, values: Iterable[Value], partition: int | None
) -> None:
    """Write records and wait until all in-sync replicas have them."""
    producer = await Producer.open(pool, topic)
    now_ms = SystemClock().now_ms()
    for value in values:
        if producer.add(_new_record(value, now_ms), partition):
            await producer.flush()
    await producer.flush()


def _new_record(value: Value, now_ms: int) -> NewRecord:
    if isinstance(value, NewRecord):
        is_timed = value.timestamp != NO_TIMESTAMP
        return value if is_timed else msgspec.structs.replace(value, timestamp=now_ms)
    data = value.encode() if isinstance(value, str) else value
    return NewRecord(data, timestamp=now_ms)


async def read_all(pool: ConnectionPool, topic: str) -> list[ConsumedRecord]:
    """All records up to the current end, by partition and offset."""
    places = [
        TopicPartition(TopicName(topic), PartitionIndex(row.partition_index))
        for row in (await _find_topic(pool, topic)).partitions
    ]
    positions = await offsets_at(pool, dict.fromkeys(places, EARLIEST))
    ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
    fetcher = Fetcher(pool)
    fetcher.seek({at: positions[at] for at in places if positions[at] < ends[at]})
    found: list[ConsumedRecord] = []
    async with asyncio.timeout(OPERATION_SECONDS_MAX):
        while fetcher.positions:
            for part in await fetcher.poll():
                at = part.partition
                found += [
                    ConsumedRecord(
                        topic=at.topic,
                        partition=at.partition,
                        offset=record.offset,
                        timestamp=record.timestamp,
                        key=record.key,
                        value=record.value,
                        headers=record.headers,
                    )
                    for record in part.records
                    if record.offset < ends[at]
                ]
            left = {at: offset for at, offset in fetcher.positions.items() if offset < ends[at]}
            fetcher.seek(left)
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def leader(pool: ConnectionPool, topic: str, partition: int) -> int:
    """The node that leads a partition."""

    async def once() -> int:
        await _find_topic(pool, topic)
        return pool.cluster.leader(topic, partition)

    return await pool.try_again(once)


async def wait_in_sync(pool: ConnectionPool, timeout_s: float) -> None:
    """Wait until all replicas of all partitions are in sync. Raises TimeoutError."""
    await _wait_until(lambda: _is_in_sync(pool), timeout_s, "all replicas are in sync")


async def _wait_until(
    condition: Callable[[], Awaitable[bool]], timeout_s: float, description: str
) -> None:
    """Poll, because the protocol offers nothing to wait for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while not await condition():
        if loop.time() > end:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {description}")
        await asyncio.sleep(POLL_SECONDS)


async def _is_in_sync(pool: ConnectionPool) -> bool:
    """Whether all nodes that the cluster lists say so. A node that was paused or cut off knows
    nothing new for a moment."""
    message = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    try:
        responses = await _ask_all(pool, message)
    except OSError:
        return False
    if sorted(responses) != sorted(pool.cluster.nodes):
        return False
    rows = [
        row
        for response in responses.values()
        for topic in response.topics
        for row in topic.partitions
    ]
    return all(
        row.leader_id >= 0 and sorted(row.isr_nodes) == sorted(row.replica_nodes) for row in rows
    )


async def list_groups(pool: ConnectionPool) -> dict[str, ConsumerGroup]:
    """All groups by name."""
    await pool.try_again(lambda: pool.metadata(()))
    names: list[str] = []
    for node in sorted(pool.cluster.nodes):
        try:
            response: ListGroupsResponse = await pool.request_node(
                node, ApiKey.LIST_GROUPS, ListGroupsRequest()
            )
        except OSError:  # a node that ended is listed until its session times out
            continue
        _check(response.error_code, f"groups of node {node}: {response.error_code.name}")
        names += [row.group_id for row in response.groups]
    return {name: await _describe(pool, name) for name in sorted(dict.fromkeys(names))}


async def _describe(pool: ConnectionPool, name: str) -> ConsumerGroup:
    row = await describe_group_of_any_type(pool, name)
    if row is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name} does not exist")
    committed = await committed_offsets(pool, name)
    existing = await _existing(pool, committed)
    ends = await offsets_at(pool, dict.fromkeys(existing, LATEST))
    return ConsumerGroup(
        name=name,
        state=row.state,
        members=tuple(member.member_id for member in row.members),
        offsets=committed,
        lag=sum(max(0, ends[at] - committed[at]) for at in existing),
    )


async def _existing(
    pool: ConnectionPool, places: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """The partitions whose topics were not deleted."""
    topics = sorted({at.topic for at in places})
    if not topics:
        return []
    response = await pool.metadata(topics)
    there = {row.name for row in response.topics if row.error_code is ErrorCode.NONE}
    return [at for at in places if at.topic in there]


def _check(code: ErrorCode, text: str) -> None:
    if code is not ErrorCode.NONE:
        raise KafkaError(code, text)
