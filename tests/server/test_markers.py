"""The sender of markers: batches, retries, moved leaders, deleted topics, fencing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from riverrun.coordinator.transactions.turn import EndMarkers
from riverrun.metadata.image import Image, PartitionImage, TopicImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, ProducerId, TopicId, TopicName
from riverrun.ports.metrics import Metrics
from riverrun.server.transactions.markers import (
    OVERTAKE_SECONDS,
    SLOW_REQUESTS_MAX,
    MarkerSender,
)
from riverrun.wire.messages.write_txn_markers_request import WriteTxnMarkersRequest
from riverrun.wire.messages.write_txn_markers_response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from tests.coordinator.fakes import LoopClock, run
from tests.coordinator.shard_driver import CountedRandomness
from tests.coordinator.transactions.driver import by_topic


def image_of(**leaders: tuple[int, ...]) -> Image:
    """Topics with the leaders of their partitions; -1 is none."""

    def partition(leader: int) -> PartitionImage:
        return PartitionImage(
            replicas=(NodeId(1), NodeId(2)),
            isr=(NodeId(1), NodeId(2)),
            leader=NodeId(leader),
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
            directories=(UUID(int=1000), UUID(int=1001)),
        )

    topics = [
        TopicImage(
            name=TopicName(name),
            id=TopicId(UUID(int=number)),
            partitions=tuple(partition(leader) for leader in some),
        )
        for number, (name, some) in enumerate(leaders.items(), start=1)
    ]
    return Image(
        topics_by_name={one.name: one for one in topics},
        topics_by_id={one.id: one for one in topics},
    )


class Brokers:
    """Records the requests with markers, and answers them with codes by partition."""

    def __init__(self, **leaders: tuple[int, ...]) -> None:
        self.image = image_of(**leaders)
        self.requests: list[tuple[float, int, list[tuple[int, str]]]] = []
        self.bodies: list[WriteTxnMarkersRequest] = []
        self.codes: dict[str, list[ErrorCode]] = {}
        """Codes for the next requests, by partition; then NONE."""
        self.down: dict[int, OSError] = {}
        self.seconds = 0.001
        self.stuck: dict[str, asyncio.Event] = {}
        """Partitions whose markers are committed when the event is set."""
        self.renewed: list[int] = []
        """Leaders to which a new connection was made."""
        self.written: list[str] = []
        self.failures: list[BaseException] = []
        self.metrics = Metrics()
        self.sender = MarkerSender(
            image=lambda: self.image,
            deliver=self.deliver,
            renew=self.renewed.append,
            close=lambda: None,
            clock=LoopClock(),
            randomness=CountedRandomness(),
            metrics=self.metrics,
            failed=self.failures.append,
        )

    def send(self, name: str, producer: int, *partitions: str, coordinator: int = 0) -> None:
        markers = EndMarkers(
            transactional_id=name,
            producer_id=ProducerId(producer),
            producer_epoch=3,
            is_commit=True,
            transaction_version=2,
            partitions=by_topic(partitions),
        )
        self.sender.send(
            PartitionIndex(coordinator),
            LeaderEpoch(7),
            markers,
            lambda: self.written.append(name),
        )

    async def deliver(
        self, leader: NodeId, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        sent = [
            (marker.producer_id, f"{topic.name}-{index}")
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]
        self.requests.append((asyncio.get_running_loop().time(), leader, sent))
        self.bodies.append(request)
        await asyncio.sleep(self.seconds)
        for _, name in sent:
            if name in self.stuck:
                await self.stuck[name].wait()
        if leader in self.down:
            raise self.down[leader]
        return WriteTxnMarkersResponse(
            markers=tuple(
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=tuple(
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=tuple(
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=self._code(f"{topic.name}-{index}"),
                                )
                                for index in topic.partition_indexes
                            ),
                        )
                        for topic in marker.topics
                    ),
                )
                for marker in request.markers
            )
        )

    def _code(self, name: str) -> ErrorCode:
        codes = self.codes.get(name)
        return codes.pop(0) if codes else ErrorCode.NONE

    def asked(self) -> list[tuple[int, list[tuple[int, str]]]]:
        return [(leader, sent) for _, leader, sent in self.requests]


def with_brokers(test: Callable[[Brokers], Awaitable[None]], **leaders: tuple[int, ...]) -> None:
    async def main() -> None:
        brokers = Brokers(**(leaders or {"orders": (1, 2, 1)}))
        await test(brokers)
        await brokers.sender.stop()
        assert not brokers.failures, brokers.failures

    run(main())


def test_markers_of_one_turn_share_a_request_to_each_leader() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.send("a", 10, "orders-0", "orders-1")
        brokers.send("b", 11, "orders-0", "orders-2")
        await asyncio.sleep(0.1)
        assert brokers.asked() == [
            (1, [(10, "orders-0"), (11, "orders-0"), (11, "orders-2")]),
            (2, [(10, "orders-1")]),
        ]
        assert sorted(brokers.written) == ["a", "b"]
        marker = brokers.bodies[0].markers[0]
        assert (marker.producer_epoch, marker.coordinator_epoch) == (3, 7)
        assert (marker.transaction_result, marker.transaction_version) == (True, 2)

    with_brokers(test)


def test_markers_that_come_during_a_request_share_the_next_one() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.send("a", 10, "orders-0")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        brokers.send("b", 11, "orders-0")
        brokers.send("c", 12, "orders-0")
        await asyncio.sleep(0.1)
        assert brokers.asked() == [
            (1, [(10, "orders-0")]),
            (1, [(11, "orders-0"), (12, "orders-0")]),
        ]
        assert brokers.written == ["a", "b", "c"]

    with_brokers(test)


def test_only_partitions_that_failed_are_repeated() -> None:
    async def test(brokers: Brokers) -> None:
        for code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ):
            brokers.requests.clear()
            brokers.codes["orders-2"] = [code, code]
            brokers.send("a", 10, "orders-0", "orders-2")
            await asyncio.sleep(0.5)
            assert brokers.asked() == [
                (1, [(10, "orders-0"), (10, "orders-2")]),
                (1, [(10, "orders-2")]),
                (1, [(10, "orders-2")]),
            ]
        assert len(brokers.written) == 7

    with_brokers(test)


def test_markers_follow_the_leader() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.down[2] = ConnectionResetError("broker 2 is dead")
        brokers.send("a", 10, "orders-1")
        await asyncio.sleep(5)
        assert not brokers.written
        assert 5 < len(brokers.requests) < 15, "the back-off limits the attempts"
        brokers.image = image_of(orders=(1, 1, 1))
        before = asyncio.get_running_loop().time()
        brokers.sender.leaders_changed()
        await asyncio.sleep(0.1)
        assert brokers.requests[-1][:2] == (before, 1), "a new leader is asked at once"
        assert brokers.written == ["a"]

    with_brokers(test)


def test_partition_without_a_leader_waits_for_one() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.send("a", 10, "orders-0", "orders-1")
        await asyncio.sleep(3)
        assert brokers.asked() == [(1, [(10, "orders-0")])]
        brokers.image = image_of(orders=(1, 2))
        brokers.sender.leaders_changed()
        await asyncio.sleep(0.1)
        assert brokers.written == ["a"]

    with_brokers(test, orders=(1, -1))


def test_partitions_of_deleted_topics_are_left_out() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.send("a", 10, "orders-0", "gone-0", "orders-9")
        brokers.send("b", 11, "gone-0")
        assert not brokers.written, "the coordinator's turn has not ended yet"
        await asyncio.sleep(0.1)
        assert brokers.asked() == [(1, [(10, "orders-0")])]
        assert sorted(brokers.written) == ["a", "b"]
        brokers.codes["orders-1"] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 100
        brokers.send("c", 12, "orders-1")
        await asyncio.sleep(0.1)
        brokers.image = image_of()
        await asyncio.sleep(2)
        assert brokers.written[-1] == "c"

    with_brokers(test)


def test_fenced_markers_are_not_repeated() -> None:
    async def test(brokers: Brokers) -> None:
        for code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
            brokers.requests.clear()
            brokers.codes["orders-0"] = [code]
            brokers.send("a", 10, "orders-0", "orders-1")
            await asyncio.sleep(5)
            assert len(brokers.requests) == 2
        assert not brokers.written

    with_brokers(test)


def test_markers_of_a_resigned_coordinator_are_dropped() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.down[1] = ConnectionResetError("broker 1 is dead")
        brokers.send("a", 10, "orders-0", coordinator=0)
        brokers.send("b", 11, "orders-0", coordinator=1)
        await asyncio.sleep(0.1)
        brokers.sender.drop(PartitionIndex(0))
        brokers.down.clear()
        await asyncio.sleep(5)
        assert brokers.written == ["b"]

    with_brokers(test)


def test_markers_that_are_sent_again_replace_the_earlier_ones() -> None:
    """A shard that is loaded again sends all its markers again."""

    async def test(brokers: Brokers) -> None:
        brokers.seconds = 1.0
        brokers.send("a", 10, "orders-0")
        await asyncio.sleep(0.5)
        brokers.send("a", 10, "orders-0")
        await asyncio.sleep(5)
        assert brokers.written == ["a"]

    with_brokers(test)


def test_response_without_a_partition_is_repeated() -> None:
    async def test(brokers: Brokers) -> None:
        whole = brokers.deliver

        async def short(leader: NodeId, request: WriteTxnMarkersRequest) -> Any:
            response = await whole(leader, request)
            return replace(response, markers=()) if len(brokers.requests) == 1 else response

        brokers.sender._deliver = short
        brokers.send("a", 10, "orders-0")
        await asyncio.sleep(1)
        assert brokers.written == ["a"]
        assert len(brokers.requests) == 2

    with_brokers(test)


def test_large_transactions_are_sent_in_several_requests() -> None:
    async def test(brokers: Brokers) -> None:
        for number in range(4):
            some = (f"orders-{index}" for index in range(3000))
            brokers.send(f"app-{number}", number, *some)
        await asyncio.sleep(1)
        assert [len(sent) for _, sent in brokers.asked()] == [6000, 6000]
        assert len(brokers.written) == 4

    with_brokers(test, orders=(1,) * 3000)


def test_partition_that_cannot_commit_delays_no_others() -> None:
    async def test(brokers: Brokers) -> None:
        brokers.stuck["orders-0"] = asyncio.Event()
        brokers.send("a", 10, "orders-0")
        await asyncio.sleep(0.1)
        brokers.send("b", 11, "orders-2")
        brokers.send("c", 12, "orders-0", "orders-2")
        await asyncio.sleep(OVERTAKE_SECONDS)
        assert brokers.renewed == [1], "later requests do not wait for the old connection"
        assert brokers.written == ["b"]
        # The partition that waits gets no second request, and the other one of "c" is written.
        assert brokers.asked()[1:] == [(1, [(11, "orders-2"), (12, "orders-2")])]
        brokers.stuck.pop("orders-0").set()
        await asyncio.sleep(0.1)
        assert brokers.asked()[2:] == [(1, [(12, "orders-0")])]
        assert brokers.written == ["b", "a", "c"]

    with_brokers(test)


def test_slow_requests_to_a_leader_are_limited() -> None:
    async def test(brokers: Brokers) -> None:
        names = [f"orders-{index}" for index in range(SLOW_REQUESTS_MAX + 2)]
        for producer, name in enumerate(names):
            brokers.stuck[name] = asyncio.Event()
            brokers.send(name, producer, name)
            await asyncio.sleep(0.01)
            await asyncio.sleep(OVERTAKE_SECONDS)
        assert len(brokers.asked()) == SLOW_REQUESTS_MAX + 1
        for event in list(brokers.stuck.values()):
            event.set()
        await asyncio.sleep(0.1)
        assert sorted(brokers.written) == names

    with_brokers(test, orders=(1,) * (SLOW_REQUESTS_MAX + 2))


def test_next_request_is_sent_when_any_slow_one_ends() -> None:
    async def test(brokers: Brokers) -> None:
        names = [f"orders-{index}" for index in range(SLOW_REQUESTS_MAX + 1)]
        for producer, name in enumerate(names):
            brokers.stuck[name] = asyncio.Event()
            brokers.send(name, producer, name)
            await asyncio.sleep(0.01)
            await asyncio.sleep(OVERTAKE_SECONDS)
        brokers.send("healthy", 100, "users-0")
        await asyncio.sleep(0.1)
        assert brokers.written == []
        brokers.stuck["orders-0"].set()
        await asyncio.sleep(0.01)
        assert brokers.written == ["orders-0", "healthy"]

    with_brokers(test, orders=(1,) * (SLOW_REQUESTS_MAX + 1), users=(1,))


def test_partitions_that_time_out_share_one_request() -> None:
    async def test(brokers: Brokers) -> None:
        names = [f"orders-{index}" for index in range(3 * SLOW_REQUESTS_MAX)]
        for producer, name in enumerate(names):
            brokers.codes[name] = [ErrorCode.REQUEST_TIMED_OUT]
            brokers.send(name, producer, name)
        await asyncio.sleep(0.01)
        brokers.stuck = {name: asyncio.Event() for name in names}
        await asyncio.sleep(2)
        assert len(brokers.asked()) == 2
        for number in range(20):
            brokers.send(f"healthy-{number}", 1000 + number, "users-0")
            await asyncio.sleep(0.01)
            assert brokers.written[-1] == f"healthy-{number}"
        for event in brokers.stuck.values():
            event.set()
        await asyncio.sleep(0.1)
        assert len(brokers.written) == len(names) + 20
        # They commit again, so they are sent as the others are.
        brokers.requests.clear()
        brokers.send("again", 2000, "orders-0", "users-0")
        await asyncio.sleep(0.1)
        assert brokers.asked() == [(1, [(2000, "orders-0"), (2000, "users-0")])]

    with_brokers(test, orders=(1,) * 3 * SLOW_REQUESTS_MAX, users=(1,))


def test_slow_request_that_fails_is_repeated() -> None:
    async def test(brokers: Brokers) -> None:
        stuck = brokers.stuck["orders-0"] = asyncio.Event()
        brokers.send("a", 10, "orders-0")
        await asyncio.sleep(2 * OVERTAKE_SECONDS)
        brokers.down[1] = TimeoutError("too late")
        del brokers.stuck["orders-0"]
        stuck.set()
        await asyncio.sleep(0.01)
        assert brokers.written == []
        brokers.down.clear()
        await asyncio.sleep(1)
        assert brokers.written == ["a"]

    with_brokers(test)
