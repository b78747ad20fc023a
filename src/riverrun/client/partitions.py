"""Produce and fetch batches of one partition through its leader."""

from __future__ import annotations

from msgspec import Struct

from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import read_header
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.messages.fetch_response import FetchResponse
from riverrun.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from riverrun.wire.messages.produce_response import ProduceResponse

EARLIEST = -2
LATEST = -1
NO_PRODUCER_ID = -1
BY_NAME_PRODUCE_MAX = 12
BY_NAME_FETCH_MAX = 12
MAY_BE_WRITTEN = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Errors after which the batch may be in the log nevertheless."""


class Produced(Struct, frozen=True, kw_only=True):
    """The position of a batch in the log."""

    base_offset: int
    log_append_time_ms: int


class Fetched(Struct, frozen=True, kw_only=True):
    """A fetch response; ``records`` may start before the requested offset."""

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of each aborted transaction, with read_committed."""


async def produce(
    pool: ConnectionPool,
    topic: str,
    partition: int,
    batch: bytes,
    *,
    acks: int = -1,
    timeout_ms: int = 30_000,
    may_create: bool = False,
    transactional_id: str | None = None,
    version_max: int | None = None,
) -> Produced:
    """Write one batch, with ``transactional_id`` as part of an open transaction.

    If it is unknown whether the batch was written, it is sent again only if it has a producer id.
    Without one, that could write it twice.
    """
    is_idempotent = read_header(batch).producer_id != NO_PRODUCER_ID

    async def once() -> Produced:
        leader = await pool.leader(topic, partition, may_create=may_create)
        connection = await pool.node_connection(leader)
        topic_id = pool.cluster.topic_id(topic)
        data = TopicProduceData(
            name=topic,
            topic_id=topic_id,
            partition_data=(PartitionProduceData(index=partition, records=batch),),
        )
        message = ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=(data,)
        )
        at_most = version_max
        if topic_id is None:
            at_most = min(BY_NAME_PRODUCE_MAX, version_max or BY_NAME_PRODUCE_MAX)
        version = connection.version_of(ApiKey.PRODUCE, at_most=at_most)
        if acks == 0:
            await connection.send(ApiKey.PRODUCE, message, version=version)
            return Produced(base_offset=-1, log_append_time_ms=-1)
        try:
            response: ProduceResponse = await connection.request(
                ApiKey.PRODUCE, message, version=version
            )
        except OSError as error:
            if is_idempotent:
                raise
            text = f"it is unknown whether {topic}-{partition} has the batch: {error}"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error
        result = response.responses[0].partition_responses[0]
        if result.error_code is not ErrorCode.NONE:
            text = result.error_message or f"{topic}-{partition}: {result.error_code.name}"
            raise KafkaError(result.error_code, text)
        return Produced(
            base_offset=result.base_offset, log_append_time_ms=result.log_append_time_ms
        )

    return await pool.try_again(once, final=frozenset() if is_idempotent else MAY_BE_WRITTEN)


async def fetch(
    pool: ConnectionPool,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 1024 * 1024,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    is_committed_only: bool = False,
    node: int | None = None,
) -> Fetched:
    """Read from an offset, by default from the leader. Waits up to ``max_wait_ms`` for records."""

    async def once() -> Fetched:
        leader = await pool.leader(topic, partition)
        connection = await pool.node_connection(leader if node is None else node)
        topic_id = pool.cluster.topic_id(topic)
        wanted = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        message = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=1 if is_committed_only else 0,
            topics=(FetchTopic(topic=topic, topic_id=topic_id, partitions=(wanted,)),),
        )
        at_most = BY_NAME_FETCH_MAX if topic_id is None else None
        response: FetchResponse = await connection.request(
            ApiKey.FETCH,
            message,
            version=connection.version_of(ApiKey.FETCH, at_most=at_most),
            timeout_s=max_wait_ms / 1000 + pool.request_timeout_s,
        )
        _check(response.error_code, topic, partition)
        result = response.responses[0].partitions[0]
        _check(result.error_code, topic, partition)
        return Fetched(
            records=result.records or b"",
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted=tuple(
                (a.producer_id, a.first_offset) for a in result.aborted_transactions or ()
            ),
        )

    return await pool.try_again(once)


def _check(code: ErrorCode, topic: str, partition: int) -> None:
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"{topic}-{partition}: {code.name}")
