"""Sends the markers that end transactions to the leaders of their partitions (WriteTxnMarkers).

    coordinator ──send──▶ queue of the leader ──one request at a time──▶ leader
                              ▲                                            │
                              └──back-off, current leader── retriable ─────┤
                                               all partitions written ─────┴──▶ coordinator

Markers that are queued while a request to the same broker is pending share the next request, so the
markers of one turn of the coordinator become one write in each partition. A request is never
pending for more than ``REQUEST_SECONDS_MAX``.

The leader responds when all partitions of a request have committed their markers. One that cannot
commit, because a follower is slow, must not delay the others. So a request that is pending for
``OVERTAKE_SECONDS`` is overtaken: later ones use a new connection, and leave out the partitions of
pending requests. New requests always use the newest connection (``marker_connections.py``).

Markers are repeated without limit: the transaction
is decided, and its partitions wait for them. A partition whose topic was deleted is left out.

The image of this node has every topic of the transaction that was not deleted: the partition was
added with an image in which it existed, before this node was elected coordinator.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from riverrun.client.connection import UnsupportedApi
from riverrun.coordinator.transactions.turn import EndMarkers
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicName
from riverrun.ports.aio import Backoff, LogLimiter, OwnedTasks
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.server.dispatch.redirects import broker_endpoint
from riverrun.server.transactions.broker_channels import BrokerChannels
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from riverrun.wire.messages.write_txn_markers_response import WriteTxnMarkersResponse

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices, NodeServices

REQUEST_SECONDS_MAX: Final = 10.0
OVERTAKE_SECONDS: Final = 0.2
SLOW_REQUESTS_MAX: Final = 4
"""Overtaken requests to one leader. With more, the next one waits."""
PARTITIONS_PER_REQUEST_MAX: Final = 5000
"""No transaction is added to a request that has this many partitions."""
RETRY: Final = Backoff(first_seconds=0.02, max_seconds=1.0)
LOG_SECONDS: Final = 10.0
FENCED: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""A newer coordinator or producer has written its own markers. All other errors are retried."""

PartitionKey = tuple[str, int]
"""Topic and partition."""
Deliver = Callable[[NodeId, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]
"""Sends a request to a broker, which may be this node. Raises ``OSError``, ``UnsupportedApi`` or
``KafkaError``."""

log = structlog.get_logger("riverrun.transactions")


class MarkerJob(Struct, eq=False):
    """The markers of one transaction. ``left`` has the partitions without theirs."""

    key: tuple[PartitionIndex, str]
    """The coordinator's partition and the transactional id."""
    epoch: LeaderEpoch
    markers: EndMarkers
    written: Callable[[], None]
    left: dict[PartitionKey, None]


class MarkerBatch(Struct, frozen=True, eq=False):
    """Partitions of a job with the same leader."""

    job: MarkerJob
    partitions: tuple[PartitionKey, ...]
    failures: int = 0
    """Attempts in a row that failed."""


PendingRequest = dict[PartitionKey, None]
"""The partitions of a request that has no response yet."""


class MarkerSender:
    """Owns a queue for each broker, and its pending requests: one, and those it has overtaken."""

    def __init__(
        self,
        *,
        image: Callable[[], Image],
        deliver: Deliver,
        renew: Callable[[NodeId], None],
        close: Callable[[], None],
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        failed: Callable[[BaseException], None],
    ) -> None:
        """``renew`` lets later requests to a broker use a new connection. ``close`` ends the
        connections of ``deliver``. ``failed`` gets exceptions that can only be our bug; the node
        must stop then."""
        self._image = image
        self._deliver = deliver
        self._renew = renew
        self._close = close
        self._randomness = randomness
        self._jobs: dict[tuple[PartitionIndex, str], MarkerJob] = {}
        self._queues: dict[NodeId, deque[MarkerBatch]] = {}
        self._sending: dict[NodeId, None] = {}
        """Leaders to whose queue a task sends."""
        self._pending: dict[NodeId, list[PendingRequest]] = {}
        self._delayed: dict[int, tuple[asyncio.TimerHandle, list[MarkerBatch]]] = {}
        self._delays = count(1)
        self._tasks = OwnedTasks(lambda _, error: failed(error))
        self._warnings = LogLimiter(clock, interval_seconds=LOG_SECONDS)
        self._requests = metrics.counter(
            "riverrun_transaction_marker_requests_total", "Requests with markers sent to leaders."
        )
        self._retries = metrics.counter(
            "riverrun_transaction_marker_retries_total",
            "Markers of partitions that were not written at the first attempt.",
        )
        metrics.gauge(
            "riverrun_transaction_marker_queue",
            "Partitions that wait for the marker of a transaction that this node has ended.",
            lambda: sum(len(job.left) for job in self._jobs.values()),
        )

    # The coordinator's side

    def send(
        self,
        coordinator: PartitionIndex,
        epoch: LeaderEpoch,
        markers: EndMarkers,
        written: Callable[[], None],
    ) -> None:
        left = {
            (topic, index): None
            for topic, indexes in markers.partitions.items()
            for index in indexes
        }
        key = (coordinator, markers.transactional_id)
        job = self._jobs[key] = MarkerJob(key, epoch, markers, written, left)
        self._route([MarkerBatch(job, tuple(left))])

    def drop(self, coordinator: PartitionIndex) -> None:
        for key in [key for key in self._jobs if key[0] == coordinator]:
            del self._jobs[key]

    def leaders_changed(self) -> None:
        """Send delayed markers to the leaders of the current image at once."""
        for number in list(self._delayed):
            handle, batches = self._delayed.pop(number)
            handle.cancel()
            self._route(batches)

    async def stop(self) -> None:
        self._jobs.clear()
        for handle, _ in self._delayed.values():
            handle.cancel()
        self._delayed.clear()
        await self._tasks.close()
        self._close()

    # Queues

    def _route(self, batches: Iterable[MarkerBatch]) -> None:
        """Queue partitions for their current leaders, and leave out those of deleted topics."""
        image = self._image()
        for batch in batches:
            if not self._is_current(batch.job):
                continue
            by_leader: dict[NodeId | None, list[PartitionKey]] = {}
            for key in batch.partitions:
                state = image.partition(TopicName(key[0]), PartitionIndex(key[1]))
                if state is None:
                    batch.job.left.pop(key, None)
                else:
                    leader = state.leader if state.leader >= 0 else None
                    by_leader.setdefault(leader, []).append(key)
            for leader, keys in by_leader.items():
                part = MarkerBatch(batch.job, tuple(keys), batch.failures)
                if leader is None:
                    self._delay([part])
                else:
                    self._enqueue(leader, part)
            if not batch.job.left:
                # Later: the coordinator is in the middle of the turn that sends these markers.
                asyncio.get_running_loop().call_soon(self._finish, batch.job)

    def _enqueue(self, leader: NodeId, batch: MarkerBatch) -> None:
        self._queues.setdefault(leader, deque()).append(batch)
        self._start_sending(leader)

    def _start_sending(self, leader: NodeId) -> None:
        if leader not in self._sending:
            self._sending[leader] = None
            self._tasks.start(self._send_queue(leader))

    def _delay(self, batches: list[MarkerBatch]) -> None:
        """Try again after a back-off."""
        failures = max(batch.failures for batch in batches) + 1
        later = [MarkerBatch(one.job, one.partitions, failures) for one in batches]
        number = next(self._delays)

        def retry() -> None:
            del self._delayed[number]
            self._route(later)

        seconds = RETRY.jittered(failures, self._randomness)
        handle = asyncio.get_running_loop().call_later(seconds, retry)
        self._delayed[number] = (handle, later)
        self._retries.value += sum(len(one.partitions) for one in later)

    def _is_current(self, job: MarkerJob) -> bool:
        return self._jobs.get(job.key) is job

    # Requests

    async def _send_queue(self, leader: NodeId) -> None:
        """Send the queue of a leader until nothing in it may be sent.

        The task starts in the next event-loop iteration, so all markers of this one share the first
        request.
        """
        self._pending.setdefault(leader, [])
        while batches := self._take(leader):
            partitions = {key: None for batch in batches for key in batch.partitions}
            self._pending[leader].append(partitions)
            request = self._tasks.start(self._send(leader, batches, partitions))
            limit_s = OVERTAKE_SECONDS if len(self._pending[leader]) <= SLOW_REQUESTS_MAX else None
            await asyncio.wait([request], timeout=limit_s)
            if not request.done():
                self._renew(leader)
        del self._sending[leader]

    async def _send(
        self, leader: NodeId, batches: list[MarkerBatch], partitions: PendingRequest
    ) -> None:
        self._requests.value += 1
        try:
            response = await self._deliver(leader, _request(batches))
        except (OSError, UnsupportedApi, KafkaError) as error:
            if self._warnings.admit(str(leader)) is not None:
                log.warning("markers are not delivered", leader=leader, error=str(error))
            self._delay(batches)
        else:
            self._delivered(leader, batches, response)
        self._pending[leader] = [one for one in self._pending[leader] if one is not partitions]
        if self._queues[leader]:
            self._start_sending(leader)

    def _take(self, leader: NodeId) -> list[MarkerBatch]:
        """Remove the batches of the next request from a queue. The partitions of pending requests
        stay, so that markers of one partition keep their order."""
        queue = self._queues[leader]
        busy = {key: None for request in self._pending[leader] for key in request}
        taken: list[MarkerBatch] = []
        left: list[MarkerBatch] = []
        size = 0
        while queue and size < PARTITIONS_PER_REQUEST_MAX:
            batch = queue.popleft()
            if not self._is_current(batch.job):
                continue
            free = tuple(key for key in batch.partitions if key not in busy)
            if len(free) < len(batch.partitions):
                waiting = tuple(key for key in batch.partitions if key in busy)
                left.append(MarkerBatch(batch.job, waiting, batch.failures))
            if free:
                taken.append(MarkerBatch(batch.job, free, batch.failures))
                size += len(free)
        queue.extendleft(reversed(left))
        return taken

    def _delivered(
        self, leader: NodeId, batches: list[MarkerBatch], response: WriteTxnMarkersResponse
    ) -> None:
        codes = _codes(response)
        for batch in batches:
            job = batch.job
            if not self._is_current(job):
                continue
            again: list[PartitionKey] = []
            for key in batch.partitions:
                code = codes.get((job.markers.producer_id, *key), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code is ErrorCode.NONE:
                    job.left.pop(key, None)
                elif code in FENCED:
                    self._fenced(leader, job, key, code)
                    break
                else:
                    again.append(key)
            if not self._is_current(job):
                continue
            if again:
                self._delay([MarkerBatch(job, tuple(again), batch.failures)])
            elif not job.left:
                self._finish(job)

    def _fenced(self, leader: NodeId, job: MarkerJob, key: PartitionKey, code: ErrorCode) -> None:
        log.warning(
            "markers are fenced",
            transactional_id=job.markers.transactional_id,
            partition=f"{key[0]}-{key[1]}",
            leader=leader,
            error=code.name,
        )
        del self._jobs[job.key]

    def _finish(self, job: MarkerJob) -> None:
        if self._is_current(job):
            del self._jobs[job.key]
            job.written()


def build_marker_sender(
    node: NodeServices,
    services: Callable[[], BrokerServices],
    failed: Callable[[BaseException], None],
) -> MarkerSender:
    """``services`` handles the requests to this node itself."""
    channels = BrokerChannels(
        node.settings.node_id,
        name="riverrun-markers",
        endpoint_of=lambda other: broker_endpoint(node, other),
        services=services,
    )

    async def deliver(leader: NodeId, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        response: WriteTxnMarkersResponse = await channels.request(
            leader, ApiKey.WRITE_TXN_MARKERS, request, timeout_s=REQUEST_SECONDS_MAX
        )
        return response

    return MarkerSender(
        image=lambda: node.metadata.current,
        deliver=deliver,
        renew=channels.renew,
        close=channels.close,
        clock=node.clock,
        randomness=node.randomness,
        metrics=node.metrics,
        failed=failed,
    )


def _request(batches: Iterable[MarkerBatch]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(markers=tuple(_marker(batch) for batch in batches))


def _marker(batch: MarkerBatch) -> WritableTxnMarker:
    markers = batch.job.markers
    topics: dict[str, list[int]] = {}
    for topic, index in batch.partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.is_commit,
        topics=tuple(
            WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(indexes))
            for topic, indexes in topics.items()
        ),
        coordinator_epoch=batch.job.epoch,
        transaction_version=markers.transaction_version,
    )


def _codes(response: WriteTxnMarkersResponse) -> Mapping[tuple[int, str, int], ErrorCode]:
    def entries() -> Iterator[tuple[tuple[int, str, int], ErrorCode]]:
        for marker in response.markers:
            for topic in marker.topics:
                for one in topic.partitions:
                    yield (marker.producer_id, topic.name, one.partition_index), one.error_code

    return dict(entries())
