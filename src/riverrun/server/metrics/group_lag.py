"""The lag of consumer groups, in records and in seconds, on the coordinator of each group.

Committed offsets are at the coordinator, and end offsets at the leaders. Before metrics are read,
the coordinator asks each leader once for the end offsets of all partitions that groups have
committed, unless it leads them itself. A follower's own end offset is not used: it may be far
behind. A partition whose leader does not answer in time has no sample, rather than an old one.

The history asks every ten seconds (``facts/sampler.py``). Without it, nothing happens while nobody
reads metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import structlog

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.security import SecuritySource, no_security
from riverrun.coordinator.offsets import CommittedPartition
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.ports.aio import LogLimiter, Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics, Sample
from riverrun.replication.replicas import Replicas
from riverrun.server.metrics.end_offsets import EndOffsetHistory
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from riverrun.wire.messages.list_offsets_response import ListOffsetsResponse

REFRESH_SECONDS: Final = 5.0
"""End offsets are asked for at most this often, however many programs read metrics."""
LEADER_SECONDS_MAX: Final = 1.0
"""For a leader to answer. Metrics wait for it."""
PARTITIONS_PER_REQUEST_MAX: Final = 500
"""To leaders: a larger request would hold the event loop on both sides."""
LATEST: Final = -1
CONSUMER: Final = -1
LOG_SECONDS: Final = 60.0

log = structlog.get_logger("riverrun.metrics")

PartitionKey = tuple[str, int]
"""Topic and partition."""
ReadLag = Callable[[EndOffsetHistory, int, int], float]
"""A lag, from the history of a partition, the committed offset and the end offset."""


class GroupLag:
    """Call ``refresh`` before the metrics are read, and ``close`` at the end."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        lags_max: int,
        committed: Callable[[], Iterable[CommittedPartition]],
        replicas: Replicas,
        image: Callable[[], Image],
        endpoint_of: Callable[[NodeId], tuple[str, int] | None],
        clock: Clock,
        security: SecuritySource = no_security,
    ) -> None:
        """``committed`` lists the offsets of the groups that this node coordinates."""
        self._lags_max = lags_max
        self._committed = committed
        self._replicas = replicas
        self._image = image
        self._endpoint_of = endpoint_of
        self._clock = clock
        self._security = security
        self._history: dict[PartitionKey, EndOffsetHistory] = {}
        self._ends: Mapping[PartitionKey, int] = {}
        """Only those of the last refresh."""
        self._refreshed_at: float | None = None
        self._refreshing = asyncio.Lock()
        self._connections: dict[NodeId, Connection] = {}
        self._warnings = LogLimiter(clock, interval_seconds=LOG_SECONDS)
        self._declare(metrics)

    def _declare(self, metrics: Metrics) -> None:
        def by_group(name: str, doc: str, read: ReadLag) -> None:
            metrics.gauges(name, doc, lambda: self._samples(read))

        by_group(
            "riverrun_group_lag_records",
            "Offsets from the committed offset of a group to the high watermark; on the group's"
            " coordinator.",
            lambda _, offset, end: max(end - offset, 0),
        )
        by_group(
            "riverrun_group_lag_seconds",
            "Time that the first record a group has not committed has waited; on the group's"
            " coordinator.",
            self._seconds,
        )

    def _measured(self) -> Iterator[CommittedPartition]:
        return islice(self._committed(), self._lags_max)

    def _samples(self, read: ReadLag) -> Iterator[Sample]:
        for group, topic, partition, offset in self._measured():
            end = self._ends.get((topic, partition))
            if end is not None:
                labels = {"group": group, "topic": topic, "partition": str(partition)}
                yield labels, read(self._history[topic, partition], offset, end)

    def _seconds(self, history: EndOffsetHistory, offset: int, end: int) -> float:
        return history.age(offset, self._clock.monotonic()) if offset < end else 0.0

    async def by_group(self) -> dict[str, tuple[int, float]]:
        """The lag of each group in records, of all partitions together, and in seconds, of the
        partition that is behind most."""
        await self.refresh()
        yielder, found = Yielder(self._clock), dict[str, tuple[int, float]]()
        for group, topic, partition, offset in list(self._measured()):
            await yielder.step()
            end, history = self._ends.get((topic, partition)), self._history.get((topic, partition))
            if end is not None and history is not None:
                records, seconds = found.get(group, (0, 0.0))
                waited = self._seconds(history, offset, end)
                found[group] = records + max(end - offset, 0), max(seconds, waited)
        return found

    # End offsets

    async def refresh(self) -> None:
        """Learn the end offsets, at most once every ``REFRESH_SECONDS``."""
        async with self._refreshing:
            now = self._clock.monotonic()
            if self._refreshed_at is None or now - self._refreshed_at >= REFRESH_SECONDS:
                self._ends = await self._ask()
                self._refreshed_at = now

    async def _ask(self) -> Mapping[PartitionKey, int]:
        """The end offsets of all committed partitions whose leader answers."""
        image, yielder = self._image(), Yielder(self._clock)
        ends: dict[PartitionKey, int] = {}
        remote: dict[NodeId, list[PartitionKey]] = {}
        wanted = dict.fromkeys((one.topic, one.partition) for one in self._measured())
        for key in wanted:
            await yielder.step()
            own = self._replicas.find(*key)
            if own is not None and own.is_leader:
                ends[key] = own.log.high_watermark
                continue
            state = image.partition(TopicName(key[0]), PartitionIndex(key[1]))
            if state is not None and state.leader >= 0:
                remote.setdefault(state.leader, []).append(key)
        self._close_unused(remote)
        for found in await asyncio.gather(*(self._ask_all(*one) for one in remote.items())):
            ends.update(found)
        now = self._clock.monotonic()
        self._history = {key: self._history.get(key) or EndOffsetHistory() for key in wanted}
        for key, end in ends.items():
            self._history[key].note(now, end)
        return ends

    async def _ask_all(
        self, leader: NodeId, keys: list[PartitionKey]
    ) -> Mapping[PartitionKey, int]:
        ends: dict[PartitionKey, int] = {}
        for at in range(0, len(keys), PARTITIONS_PER_REQUEST_MAX):
            part = keys[at : at + PARTITIONS_PER_REQUEST_MAX]
            found = await self._ask_leader(leader, part)
            ends.update(found)
            if not found:
                break  # the leader does not answer; metrics must not wait for it again
        return ends

    async def _ask_leader(
        self, leader: NodeId, keys: list[PartitionKey]
    ) -> Mapping[PartitionKey, int]:
        try:
            async with asyncio.timeout(LEADER_SECONDS_MAX):
                connection = await self._connect(leader)
                response: ListOffsetsResponse = await connection.request(
                    ApiKey.LIST_OFFSETS, _request(keys), timeout_s=LEADER_SECONDS_MAX
                )
        except (OSError, UnsupportedApi) as error:
            self._close(leader)
            if self._warnings.admit(str(leader)) is not None:
                log.warning("no end offsets for the lag of groups", leader=leader, error=str(error))
            return {}
        return {
            (topic.name, one.partition_index): one.offset
            for topic in response.topics
            for one in topic.partitions
            if one.error_code is ErrorCode.NONE and one.offset >= 0
        }

    async def _connect(self, leader: NodeId) -> Connection:
        known, endpoint = self._connections.get(leader), self._endpoint_of(leader)
        if endpoint is None:
            raise ConnectionError("the leader has no address")
        host, port = endpoint
        if known is not None and not known.is_closed and known.address == f"{host}:{port}":
            return known
        self._close(leader)
        opened = await Connection.connect(
            host,
            port,
            client_id="riverrun-metrics",
            connect_timeout_s=LEADER_SECONDS_MAX,
            security=self._security(),
        )
        self._connections[leader] = opened
        return opened

    def _close_unused(self, used: Mapping[NodeId, object]) -> None:
        for leader in [leader for leader in self._connections if leader not in used]:
            self._close(leader)

    def _close(self, leader: NodeId) -> None:
        connection = self._connections.pop(leader, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._close_unused({})


def _request(keys: list[PartitionKey]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for topic, partition in keys:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        topics.setdefault(topic, []).append(wanted)
    return ListOffsetsRequest(
        replica_id=CONSUMER,
        topics=tuple(
            ListOffsetsTopic(name=name, partitions=tuple(some)) for name, some in topics.items()
        ),
    )
