"""A node that leads partitions with followers, for Produce, Fetch and ListOffsets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from riverrun.metadata.image import (
    DIRECTORY_UNASSIGNED,
    BrokerImage,
    Endpoint,
    Image,
    PartitionImage,
    TopicImage,
)
from riverrun.model.ids import LeaderEpoch, NodeId, Offset, TopicId, TopicName
from riverrun.model.settings import LONG_MAX
from riverrun.ports.aio import LogLimiter
from riverrun.ports.metrics import Metrics
from riverrun.replication.isr import IsrLimits
from riverrun.replication.isr_sender import ProposalQueue
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers
from riverrun.replication.repair.repairer import RepairQueue
from riverrun.replication.replicas import Replicas
from riverrun.replication.throttle import Throttle, leader_list
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.fetch.session_cache import FetchSessions
from riverrun.server.metrics.topic_traffic import TopicsTraffic
from riverrun.server.network.memory import SendMemory
from riverrun.server.requests import fetch, produce
from riverrun.storage.settings import LogSettings
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import encode_request
from riverrun.wire.fetch import FetchPartition
from riverrun.wire.fetch_client import (
    FollowerFetchRequest,
    FollowerFetchResponse,
    parse_fetch_response,
)
from riverrun.wire.messages import fetch_request as codec
from tests.server.access import OPEN_ACCESS, no_quotas
from tests.storage.machines import NOW_MS, Machine, batch
from tests.storage.virtual_loop import VirtualLoop

ME, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
TOPIC = TopicId(UUID(int=77))
VERSION = 18
CLIENT_ID = "follower"


class Node:
    """Node 1 of three, on a virtual event loop. It leads all partitions of one topic."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        leader: NodeId = ME,
        isr: tuple[NodeId, ...] = (ME, TWO),
        replicas: tuple[NodeId, ...] = (ME, TWO, THREE),
        racks: bool = False,
        throttled_rate: int = LONG_MAX,
        **settings: object,
    ) -> None:
        self.machine = Machine()
        self.loop = VirtualLoop(self.machine.clock)
        log_settings = LogSettings(**settings)  # type: ignore[arg-type]
        self.image = image_of(partitions, leader=leader, isr=isr, replicas=replicas)
        self.proposals = ProposalQueue()
        self.metrics = Metrics()
        self.repairs = RepairQueue(self.metrics)
        self.peers = Peers(
            now=self.loop.time,
            image=lambda: self.image,
            limits=IsrLimits(),
            are_followers_read=racks,
            propose=self.proposals.propose,
        )
        self.replicas = Replicas(
            self.machine.start(),
            ME,
            lambda *_: log_settings,
            lambda _: None,
            self.peers,
            on_damage=self.repairs.add,
        )
        self.services: Any = SimpleNamespace(
            access=OPEN_ACCESS,
            quotas=no_quotas(),
            audit=None,
            replicas=self.replicas,
            leader_throttle=Throttle(ME, throttled_rate, leader_list),
            metadata=SimpleNamespace(current=self.image),
            clock=SimpleNamespace(monotonic=self.loop.time, now_ms=lambda: NOW_MS),
            settings=SimpleNamespace(
                node_id=ME, replication=SimpleNamespace(fetch_bytes_max=1 << 25)
            ),
            fetch_sessions=FetchSessions(100, self.machine.randomness),
            send_memory=SendMemory(1 << 30),
            append_warnings=LogLimiter(self.machine.clock, interval_seconds=10.0),
            lifecycle=SimpleNamespace(is_sure=True),
            topics_traffic=TopicsTraffic(self.metrics, topics_max=1000),
        )
        self.publish(self.image)

    def publish(self, image: Image) -> None:
        self.image = self.services.metadata.current = image
        for topic in image.topics_by_name.values():
            self.replicas.apply_topic(image, topic)

    def partition(self, index: int = 0) -> Partition:
        return self.replicas.get("topic", index)

    def append(self, *values: bytes, index: int = 0, acks: int = 1) -> Offset:
        appended = self.partition(index).append(batch(*values), acks=acks, now_ms=NOW_MS)
        return Offset(appended.last_offset + 1)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        try:
            self.loop.run_until_complete(scenario)
        finally:
            self.loop.close()

    # Requests of other nodes

    def call(self, module: Any, frame: bytes, at: int, version: int) -> Any:
        context = RequestContext(version, 1, CLIENT_ID, "127.0.0.1", "PLAINTEXT", 1)
        view = memoryview(bytearray(frame))
        return module.handle_frame(self.services, context, view, at)

    def ask(
        self, request: FollowerFetchRequest, wanted: list[FetchPartition], forgotten: Any = ()
    ) -> asyncio.Future[FollowerFetchResponse]:
        """Send a follower's fetch; the future has the response."""
        body = self.call(fetch, encoded(request, wanted, forgotten), 0, VERSION)
        received: asyncio.Future[FollowerFetchResponse] = asyncio.get_running_loop().create_future()

        def take(buffers: list[Any]) -> None:
            whole = memoryview(b"".join(bytes(buffer) for buffer in buffers))
            received.set_result(parse_fetch_response(whole, 0, VERSION))

        if inspect.isawaitable(body):
            waiting = asyncio.ensure_future(body)
            waiting.add_done_callback(
                lambda done: None if done.cancelled() else take(done.result())
            )
        else:
            take(body)
        return received

    def produce(self, frame: bytes, version: int) -> Any:
        return self.call(produce, frame, 0, version)


def encoded(
    request: FollowerFetchRequest,
    wanted: list[FetchPartition],
    forgotten: Iterable[tuple[UUID, int]],
) -> bytes:
    """A follower's fetch, encoded by the generated codec."""
    return encode_request(
        ApiKey.FETCH,
        VERSION,
        codec.FetchRequest(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            replica_state=codec.ReplicaState(
                replica_id=request.replica_id, replica_epoch=request.replica_epoch
            ),
            topics=tuple(
                codec.FetchTopic(
                    topic_id=TOPIC,
                    partitions=(
                        codec.FetchPartition(
                            partition=row.partition,
                            fetch_offset=row.offset,
                            partition_max_bytes=row.max_bytes,
                            log_start_offset=row.log_start_offset,
                            current_leader_epoch=row.leader_epoch,
                            last_fetched_epoch=row.last_fetched_epoch,
                        ),
                    ),
                )
                for row in wanted
            ),
            forgotten_topics_data=tuple(
                codec.ForgottenTopic(topic_id=topic, partitions=(index,))
                for topic, index in forgotten
            ),
        ),
    )


def image_of(
    partitions: int,
    *,
    leader: NodeId = ME,
    isr: tuple[NodeId, ...] = (ME, TWO),
    replicas: tuple[NodeId, ...] = (ME, TWO, THREE),
    epoch: int = 0,
    partition_epoch: int = 0,
) -> Image:
    one = PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=partition_epoch,
        directories=(DIRECTORY_UNASSIGNED,) * len(replicas),
    )
    topic = TopicImage(name=TopicName("topic"), id=TOPIC, partitions=(one,) * partitions)
    return Image(
        brokers={
            node: BrokerImage(
                id=node,
                epoch=10 + node,
                incarnation=UUID(int=node),
                endpoints={"PLAINTEXT": Endpoint(host=f"node{node}", port=9092)},
                is_fenced=False,
                rack=f"rack-{node}",
            )
            for node in (ME, TWO, THREE)
        },
        topics_by_name={topic.name: topic},
        topics_by_id={topic.id: topic},
    )


def request(
    node: NodeId = TWO,
    *,
    epoch: int | None = None,
    session: tuple[int, int] = (0, 0),
    wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> FollowerFetchRequest:
    broker_epoch = 10 + node if epoch is None else epoch
    return FollowerFetchRequest(node, broker_epoch, wait_ms, min_bytes, max_bytes, *session)


def want(
    offset: int, index: int = 0, *, epoch: int = 0, last_epoch: int = -1, start: int = 0
) -> FetchPartition:
    return FetchPartition(TOPIC, index, offset, 1 << 20, epoch, last_epoch, start)
