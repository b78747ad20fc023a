"""Replication end to end: our follower fetchers against our own Fetch handler."""

from __future__ import annotations

import asyncio
from typing import Any

from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, Offset
from riverrun.ports.metrics import Metrics
from riverrun.replication.follower.fetcher import Fetchers
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.requests import fetch
from riverrun.storage.log_manager import LogManager
from riverrun.storage.settings import LogSettings
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.headers import response_start
from tests.replication.follower.leader import Leader, NetworkLoop, Pipe
from tests.replication.follower.scenario import LoopClock
from tests.server.requests.leader_node import THREE, TWO, Node, image_of
from tests.storage.machines import Machine, read_all
from tests.wire.request_headers import body_position, read_request_header

WITHIN_SECONDS = 30.0


class RealLeader(Leader):
    """A leader that serves fetches with the real Fetch handler."""

    def __init__(self, loop: NetworkLoop, node: Node) -> None:
        super().__init__(loop, "node1")
        self.node = node
        self.fetches = 0

    def received(self, pipe: Pipe, frame: bytes) -> None:
        header = read_request_header(frame)
        if header.api_key != ApiKey.FETCH:
            super().received(pipe, frame)
            return
        self.fetches += 1
        version = header.api_version
        at = body_position(ALL_APIS[ApiKey.FETCH], version, frame, header.at)
        context = RequestContext(version, header.correlation_id, "f", "host", "PLAINTEXT", 1)
        view = memoryview(bytearray(frame))
        found = fetch.handle_frame(self.node.services, context, view, at)
        if isinstance(found, list):
            self._send_response(pipe, header.correlation_id, found)
        else:
            waiting = asyncio.ensure_future(found)
            waiting.add_done_callback(
                lambda done: self._send_response(pipe, header.correlation_id, done.result())
            )

    def _send_response(self, pipe: Pipe, correlation_id: int, buffers: list[Any]) -> None:
        body = b"".join(bytes(buffer) for buffer in buffers)
        if not pipe.is_gone:
            pipe.respond(response_start(correlation_id, len(body), is_flexible=True) + body)


class FollowingNode:
    """Node 2 or 3, a follower of node 1."""

    def __init__(self, loop: NetworkLoop, clock: LoopClock, node_id: NodeId, image: Image) -> None:
        self.machine = Machine(node_id)
        settings = LogSettings()
        directory = self.machine.start()
        self.replicas = Replicas(directory, node_id, lambda *_: settings, lambda _: None)
        self.fetchers = Fetchers(
            node_id=node_id,
            replicas=self.replicas,
            log_manager=LogManager(directory, clock=clock, metrics=Metrics()),
            endpoint_of=lambda _: ("node1", 9092),
            broker_epoch=lambda: image.brokers[node_id].epoch,
            cluster_id="cluster",
            settings=FollowerSettings(),
            clock=clock,
            randomness=self.machine.randomness,
        )
        self.publish(image)

    def publish(self, image: Image) -> None:
        for topic in image.topics_by_name.values():
            self.replicas.apply_topic(image, topic)
        self.fetchers.update(list(self.replicas))

    def partition(self, index: int = 0) -> Partition:
        return self.replicas.get("topic", index)


class ReplicatedPartitions:
    """Node 1 and its two followers in one event loop."""

    def __init__(self, partitions: int) -> None:
        self.clock = LoopClock()
        self.loop = self.clock.loop = NetworkLoop(self.clock)
        self.node = Node(partitions, isr=(NodeId(1), TWO, THREE), min_insync_replicas=2)
        self.node.loop.close()
        self.node.loop = self.loop
        self.node.peers.now = self.loop.time
        self.node.services.clock.monotonic = self.loop.time
        self.leader = RealLeader(self.loop, self.node)
        image = self.node.image
        self.followers = [FollowingNode(self.loop, self.clock, n, image) for n in (TWO, THREE)]

    def run(self, scenario: Any) -> None:
        async def whole() -> None:
            tasks = [asyncio.ensure_future(f.fetchers.run()) for f in self.followers]
            try:
                async with asyncio.timeout(WITHIN_SECONDS):
                    await scenario()
            finally:
                for follower in self.followers:
                    await follower.fetchers.stop()
                await asyncio.gather(*tasks)

        try:
            self.loop.run_until_complete(whole())
        finally:
            self.loop.close()

    async def committed(self, end: int, index: int = 0) -> float:
        """Wait until offsets below ``end`` are committed. Returns the seconds that it took."""
        began = self.loop.time()
        partition = self.node.partition(index)
        if partition.log.high_watermark < end:
            committed: asyncio.Future[ErrorCode] = self.loop.create_future()
            partition.when_committed(Offset(end), committed.set_result)
            assert await committed is ErrorCode.NONE
        return self.loop.time() - began


def test_records_are_committed_within_milliseconds_when_both_followers_have_them() -> None:
    cluster = ReplicatedPartitions(1)

    async def scenario() -> None:
        for number in range(20):
            end = cluster.node.append(b"%d" % number, bytes(2000), acks=-1)
            took = await cluster.committed(end)
            assert number == 0 or took < 0.01
            for follower in cluster.followers:
                assert follower.partition().log.end_offset >= end
        for follower in cluster.followers:
            log = follower.partition().log
            log.high_watermark = log.end_offset
            assert read_all(log) == read_all(cluster.node.partition().log)

    cluster.run(scenario)


def test_idle_partitions_do_not_delay_a_busy_one() -> None:
    cluster = ReplicatedPartitions(1000)

    async def scenario() -> None:
        cluster.node.append(b"first", index=500)
        await cluster.committed(1, 500)
        for number in range(1, 10):
            cluster.node.append(b"next", index=500)
            assert await cluster.committed(number + 1, 500) < 0.01

    cluster.run(scenario)


def test_diverged_follower_truncates_to_the_leaders_log() -> None:
    cluster = ReplicatedPartitions(1)

    async def scenario() -> None:
        cluster.node.append(b"a", b"b")
        await cluster.committed(2)
        stray = cluster.followers[0].partition().log
        data = bytearray(stray.read(0, max_bytes=1 << 20, end=2).data)  # type: ignore[union-attr]
        data[0:8] = (2).to_bytes(8, "big")
        later = image_of(1, isr=(NodeId(1), TWO, THREE), epoch=3, partition_epoch=1)
        stray.append_as_follower(data)
        cluster.node.publish(later)
        cluster.node.append(b"c")
        for follower in cluster.followers:
            follower.publish(later)
        await cluster.committed(3)
        assert stray.end_offset == 3
        assert stray.epochs.entries == [(0, 0), (3, 2)]

    cluster.run(scenario)
