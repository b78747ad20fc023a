"""The queue of markers for one leader: parked batches, their order, and slow partitions."""

from __future__ import annotations

from riverrun.coordinator.transactions.turn import EndMarkers
from riverrun.model.ids import LeaderEpoch, PartitionIndex, ProducerId
from riverrun.server.transactions.marker_queue import (
    MarkerBatch,
    MarkerJob,
    MarkerQueue,
    MarkerRequest,
    PartitionKey,
)

STUCK: PartitionKey = ("stuck", 0)
HEALTHY: PartitionKey = ("healthy", 0)
OTHER: PartitionKey = ("other", 0)


def batch(name: str, *partitions: PartitionKey) -> MarkerBatch:
    markers = EndMarkers(
        transactional_id=name,
        producer_id=ProducerId(1),
        producer_epoch=0,
        is_commit=True,
        transaction_version=2,
        partitions={},
    )
    key = (PartitionIndex(0), name)
    left = dict.fromkeys(partitions)
    return MarkerBatch(MarkerJob(key, LeaderEpoch(0), markers, lambda: None, left), partitions)


def taken(request: MarkerRequest | None) -> list[tuple[str, tuple[PartitionKey, ...]]]:
    assert request is not None
    return [(one.job.markers.transactional_id, one.partitions) for one in request.batches]


def test_batches_of_a_busy_partition_are_looked_at_once() -> None:
    looked_at: list[str] = []

    def is_current(job: MarkerJob) -> bool:
        looked_at.append(job.markers.transactional_id)
        return True

    queue = MarkerQueue(is_current)
    queue.add(batch("first", STUCK))
    assert taken(queue.take()) == [("first", (STUCK,))]
    for number in range(100):
        queue.add(batch(f"waiting-{number}", STUCK))
    assert queue.take() is None
    looked_at.clear()
    queue.add(batch("a", HEALTHY))
    assert taken(queue.take()) == [("a", (HEALTHY,))]
    assert looked_at == ["a"]


def test_parked_batches_keep_their_order_and_come_first() -> None:
    queue = MarkerQueue(lambda _job: True)
    queue.add(batch("first", STUCK, OTHER))
    request = queue.take()
    assert request is not None
    queue.add(batch("a", STUCK, OTHER, HEALTHY))
    queue.add(batch("b", OTHER, STUCK))
    assert taken(queue.take()) == [("a", (HEALTHY,))]
    queue.add(batch("c", STUCK))
    queue.end(request)
    assert taken(queue.take()) == [("a", (STUCK, OTHER)), ("b", (STUCK, OTHER)), ("c", (STUCK,))]


def test_batches_of_a_job_that_ended_are_dropped() -> None:
    ended: list[str] = []
    queue = MarkerQueue(lambda job: job.markers.transactional_id not in ended)
    queue.add(batch("first", STUCK))
    request = queue.take()
    assert request is not None
    queue.add(batch("a", STUCK))
    assert queue.take() is None
    ended.append("a")
    queue.end(request)
    assert queue.take() is None


def test_slow_partitions_have_one_request_of_their_own() -> None:
    queue = MarkerQueue(lambda _job: True)
    queue.add(batch("first", STUCK, OTHER, HEALTHY))
    request = queue.take()
    assert request is not None
    queue.note_slow(request, [STUCK, OTHER])
    queue.end(request)
    queue.add(batch("a", STUCK, HEALTHY))
    assert taken(queue.take()) == [("a", (HEALTHY,))]
    slow = queue.take()
    assert taken(slow) == [("a", (STUCK,))]
    assert queue.ordinary_requests == 1
    queue.add(batch("b", OTHER))
    queue.add(batch("c", STUCK))
    assert queue.take() is None, "one request with slow partitions is pending"
    assert slow is not None
    queue.note_slow(slow, [])
    queue.end(slow)
    assert taken(queue.take()) == [("c", (STUCK,))], "it commits again"
    assert taken(queue.take()) == [("b", (OTHER,))]
