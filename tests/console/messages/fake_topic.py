"""A topic in memory that answers fetches as a broker does, with its limits on bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from riverrun.wire.messages.fetch_request import FetchRequest
from riverrun.wire.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)

Result = TypeVar("Result")
TOPIC = "topic"


class FakePartition:
    """Batches by offset. Gaps are left by compaction."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        """First offset, end, and bytes."""
        self.start = 0
        self.end = 0

    def add(
        self,
        records: Sequence[NewRecord],
        *,
        gap: int = 0,
        compression: Compression = Compression.NONE,
    ) -> None:
        base = self.end + gap
        data = build_batch(records, base_offset=base, leader_epoch=0, compression=compression)
        self.end = base + len(records)
        self.batches.append((base, self.end, data))

    def read(self, offset: int, bytes_max: int, *, at_least_one: bool) -> bytes:
        found = b""
        for _, end, data in self.batches:
            if end <= offset:
                continue
            if found and len(found) + len(data) > bytes_max:
                break
            if not found and not at_least_one and len(data) > bytes_max:
                break
            found += data
        return found


class FakeTopic:
    """The client side: ``pool`` is used instead of a connection pool."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [FakePartition() for _ in range(partitions)]
        self.fetches = 0
        self.cluster = SimpleNamespace(topic_id=lambda _name: None)
        self.request_timeout_s = 1.0

    @property
    def pool(self) -> ConnectionPool:
        return cast(ConnectionPool, self)

    async def leader(self, topic: str, partition: int) -> int:
        return partition % 2

    async def node_connection(self, node: int) -> Any:
        return SimpleNamespace(version_of=lambda _key, **_limits: 12, request=self._request)

    async def try_again(self, operation: Callable[[], Awaitable[Result]]) -> Result:
        return await operation()

    async def _request(self, key: object, message: FetchRequest, **_more: Any) -> FetchResponse:
        self.fetches += 1
        left = message.max_bytes
        rows = []
        is_first = True
        for wanted in message.topics[0].partitions:
            held = self.partitions[wanted.partition]
            code, data = ErrorCode.NONE, b""
            if not held.start <= wanted.fetch_offset <= held.end:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                limit = min(wanted.partition_max_bytes, left)
                data = held.read(wanted.fetch_offset, limit, at_least_one=is_first)
            is_first = is_first and not data
            left = max(0, left - len(data))
            rows.append(
                PartitionData(
                    partition_index=wanted.partition,
                    error_code=code,
                    high_watermark=held.end,
                    last_stable_offset=held.end,
                    log_start_offset=held.start,
                    aborted_transactions=(),
                    records=data,
                )
            )
        topic = FetchableTopicResponse(topic=TOPIC, partitions=tuple(rows))
        return FetchResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, session_id=0, responses=(topic,)
        )
