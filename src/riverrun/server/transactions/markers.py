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
pending requests (``marker_queue.py``). New requests always use the newest connection
(``marker_connections.py``).

A leader responds for a partition that has not committed before the time of the request is up
(``COMMIT_SECONDS_MAX`` of ``write_txn_markers.py``). Such partitions share a request of their own
from then on, so that they cannot use all requests that may be pending.

Markers are repeated without limit: the transaction
is decided, and its partitions wait for them. A partition whose topic was deleted is left out.

The image of this node has every topic of the transaction that was not deleted: the partition was
added with an image in which it existed, before this node was elected coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog

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
from riverrun.server.transactions.marker_queue import (
    MarkerBatch,
    MarkerJob,
    MarkerQueue,
    MarkerRequest,
    PartitionKey,
)
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
"""Overtaken requests to one leader, without that of slow partitions. With more, the next request
waits until one of them ends."""
RETRY: Final = Backoff(first_seconds=0.02, max_seconds=1.0)
LOG_SECONDS: Final = 10.0
FENCED: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""A newer coordinator or producer has written its own markers. All other errors are retried."""

Deliver = Callable[[NodeId, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]
"""Sends a request to a broker, which may be this node. Raises ``OSError``, ``UnsupportedApi`` or
``KafkaError``."""

log = structlog.get_logger("riverrun.transactions")


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
        self._queues: dict[NodeId, MarkerQueue] = {}
        self._sending: dict[NodeId, None] = {}
        """Leaders to whose queue a task sends."""
        self._running: dict[NodeId, list[asyncio.Task[None]]] = {}
        """Tasks of pending requests."""
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
        queue = self._queues.get(leader)
        if queue is None:
            queue = self._queues[leader] = MarkerQueue(self._is_current)
        queue.add(batch)
        self._start_sending(leader)

    def _start_sending(self, leader: NodeId) -> None:
        if leader not in self._sending:
            self._sending[leader] = None
            self._tasks.start(self._send_queue(leader))

    def _delay(self, batches: Sequence[MarkerBatch]) -> None:
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
        queue, running = self._queues[leader], self._running.setdefault(leader, [])
        while (taken := queue.take()) is not None:
            request = self._tasks.start(self._send(leader, queue, taken))
            running[:] = [*(task for task in running if not task.done()), request]
            await asyncio.wait([request], timeout=OVERTAKE_SECONDS)
            if not request.done():
                self._renew(leader)
            while queue.ordinary_requests > SLOW_REQUESTS_MAX:
                running[:] = [task for task in running if not task.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        del self._sending[leader]

    async def _send(self, leader: NodeId, queue: MarkerQueue, request: MarkerRequest) -> None:
        self._requests.value += 1
        try:
            response = await self._deliver(leader, _request(request.batches))
        except (OSError, UnsupportedApi, KafkaError) as error:
            if self._warnings.admit(str(leader)) is not None:
                log.warning("markers are not delivered", leader=leader, error=str(error))
            self._delay(request.batches)
        else:
            codes = _codes(response)
            timed_out = [key for key, code in codes.items() if code is ErrorCode.REQUEST_TIMED_OUT]
            queue.note_slow(request, [(topic, index) for _, topic, index in timed_out])
            self._delivered(leader, request.batches, codes)
        finally:
            queue.end(request)
        if queue.has_batches:
            self._start_sending(leader)

    def _delivered(
        self,
        leader: NodeId,
        batches: Sequence[MarkerBatch],
        codes: Mapping[tuple[int, str, int], ErrorCode],
    ) -> None:
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
