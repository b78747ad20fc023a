"""Sends requests to each node directly, past the proxy.

Real clients use leaders only and hide details. The probe reads every replica, records the high
watermark of the response that contained a record, and asks each node for the quorum leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct

from riverrun.chaos.cluster import ChaosCluster, NodeState
from riverrun.chaos.history import Action, History
from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.fetcher import read_from
from riverrun.client.security import client_security
from riverrun.model.errors import ErrorCode
from riverrun.model.names import METADATA_TOPIC
from riverrun.records.batch import CorruptBatch
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages import describe_quorum_request as quorum_request
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic

Result = TypeVar("Result")

RESPONSE_SECONDS_MAX = 1.0
PAUSE_SECONDS = 0.1
FETCH_BYTES_MAX = 1 << 20

NO_RESPONSE = (OSError, TimeoutError, UnsupportedApi)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    leader: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    id: UUID | None
    partitions: Mapping[int, PartitionView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedQuorum:
    leader: int
    epoch: int
    voters: tuple[int, ...]
    observers: tuple[int, ...]


class Probe:
    """Runs an event loop in its own thread; all methods may be called from other threads."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._is_ours = cluster.peer == "riverrun"
        self._client_security = client_security(cluster.login)
        self._controller_security = client_security(cluster.controller_login)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="probe", daemon=True)
        self._thread.start()
        self._watch: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for connection in self._connections.values():
            connection.close()
            await connection.wait_closed()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # Requests

    def topic(self, name: str) -> TopicView | None:
        """The topic according to the first node that responds."""
        for number in self._cluster.running:
            view = self._call(self._topic(number, name))
            if view is not None:
                return view
        return None

    def topic_on(self, number: int, name: str) -> TopicView | None:
        return self._call(self._topic(number, name))

    def brokers(self) -> dict[int, tuple[int, ...]]:
        """The live brokers according to each running node."""
        return {n: self._call(self._brokers(n)) for n in self._cluster.running}

    def move(self, topic: str, targets: Mapping[int, tuple[int, ...]]) -> bool:
        """Reassign partitions; return whether the controller accepted it."""
        rows = tuple(
            ReassignablePartition(partition_index=index, replicas=replicas)
            for index, replicas in targets.items()
        )
        message = AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(name=topic, partitions=rows),), timeout_ms=1000
        )
        return self._call(self._move(message))

    async def _move(self, message: AlterPartitionReassignmentsRequest) -> bool:
        for number in self._cluster.running:
            try:
                response = await self._request(
                    number, ApiKey.ALTER_PARTITION_REASSIGNMENTS, message, controller=False
                )
            except NO_RESPONSE:
                continue
            codes = [row.error_code for topic in response.responses for row in topic.partitions]
            if response.error_code is ErrorCode.NONE and all(c is ErrorCode.NONE for c in codes):
                return True
        return False

    def request(self, number: int, key: ApiKey, message: Struct) -> Any:
        """Send any request to a node. Raises one of NO_RESPONSE."""
        return self._call(self._request(number, key, message, controller=False))

    def quorum(self, number: int) -> ProbedQuorum | None:
        """The quorum according to a node; None if it does not respond."""
        return self._call(self._quorum(number))

    async def _request(self, number: int, key: ApiKey, message: Struct, *, controller: bool) -> Any:
        place = self._cluster.nodes[number].place
        address = place.controller if controller else place.client
        connection = self._connections.get((address, number))
        if connection is None or connection.is_closed:
            host, _, port = address.rpartition(":")
            connection = await Connection.connect(
                host,
                int(port),
                client_id="chaos",
                timeout_s=RESPONSE_SECONDS_MAX,
                connect_timeout_s=RESPONSE_SECONDS_MAX,
                security=self._controller_security if controller else self._client_security,
            )
            self._connections[(address, number)] = connection
        return await connection.request(key, message)

    async def _topic(self, number: int, name: str) -> TopicView | None:
        wanted = MetadataRequest(
            topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False
        )
        try:
            response = await self._request(number, ApiKey.METADATA, wanted, controller=False)
        except NO_RESPONSE:
            return None
        row = response.topics[0]
        if row.error_code is not ErrorCode.NONE:
            return None
        return TopicView(
            id=row.topic_id,
            partitions={
                p.partition_index: PartitionView(
                    leader=p.leader_id, isr=tuple(p.isr_nodes), replicas=tuple(p.replica_nodes)
                )
                for p in row.partitions
            },
        )

    async def _brokers(self, number: int) -> tuple[int, ...]:
        try:
            wanted = MetadataRequest(topics=(), allow_auto_topic_creation=False)
            response = await self._request(number, ApiKey.METADATA, wanted, controller=False)
        except NO_RESPONSE:
            return ()
        return tuple(sorted(broker.node_id for broker in response.brokers))

    async def _quorum(self, number: int) -> ProbedQuorum | None:
        wanted = quorum_request.DescribeQuorumRequest(
            topics=(
                quorum_request.TopicData(
                    topic_name=METADATA_TOPIC,
                    partitions=(quorum_request.PartitionData(partition_index=0),),
                ),
            )
        )
        try:
            response = await self._request(number, ApiKey.DESCRIBE_QUORUM, wanted, controller=True)
        except NO_RESPONSE:
            return None
        if not response.topics:
            return None
        row = response.topics[0].partitions[0]
        return ProbedQuorum(
            leader=row.leader_id,
            epoch=row.leader_epoch,
            voters=tuple(sorted(voter.replica_id for voter in row.current_voters)),
            observers=tuple(sorted(replica.replica_id for replica in row.observers)),
        )

    def request_controller(self, number: int, key: ApiKey, message: Struct) -> Future[ErrorCode]:
        """Send a request without waiting; the future returns the error code of the response."""

        async def request() -> ErrorCode:
            response = await self._request(number, key, message, controller=True)
            code: ErrorCode = response.error_code
            return code

        return asyncio.run_coroutine_threadsafe(request(), self._loop)

    # Watches

    def watch(self, history: History, topic: str) -> None:
        """Read every replica of a topic and poll the quorum until ``unwatch``."""

        async def start() -> None:
            self._watch = asyncio.create_task(self._watch_all(history, topic))

        self._call(start())

    def unwatch(self) -> None:
        async def stop() -> None:
            if self._watch is not None:
                self._watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._watch
                self._watch = None

        with contextlib.suppress(CancelledError):
            self._call(stop())

    async def _watch_all(self, history: History, topic: str) -> None:
        async with asyncio.TaskGroup() as group:
            for number in self._cluster.nodes:
                group.create_task(self._watch_replicas(history, topic, number))
                group.create_task(self._watch_quorum(history, number))

    async def _watch_replicas(self, history: History, topic: str, number: int) -> None:
        positions: dict[int, int] = {}
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            if self._cluster.nodes[number].state is not NodeState.RUNNING:
                continue
            view = await self._topic(number, topic)
            if view is None:
                continue
            with contextlib.suppress(CorruptBatch, *NO_RESPONSE):
                await self._read(history, topic, number, view, positions)

    async def _read(
        self,
        history: History,
        topic: str,
        number: int,
        view: TopicView,
        positions: dict[int, int],
    ) -> None:
        wanted = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES_MAX,
            topics=(
                FetchTopic(
                    topic=topic,
                    topic_id=view.id,
                    partitions=tuple(
                        FetchPartition(
                            partition=partition,
                            fetch_offset=positions.get(partition, 0),
                            partition_max_bytes=FETCH_BYTES_MAX,
                        )
                        for partition, about in view.partitions.items()
                        if number in about.replicas
                    ),
                ),
            ),
        )
        response = await self._request(number, ApiKey.FETCH, wanted, controller=False)
        for row in (row for found in response.responses for row in found.partitions):
            if row.error_code is not ErrorCode.NONE:
                continue
            at = positions.get(row.partition_index, 0)
            records, positions[row.partition_index] = read_from(row.records or b"", at)
            if records:
                history.add(
                    f"replica-{number}",
                    Action.READ,
                    partition=row.partition_index,
                    records=tuple((r.offset, (r.value or b"").decode()) for r in records),
                    # Kafka reads its high watermark and its log at different moments.
                    high_watermark=row.high_watermark if self._is_ours else -1,
                    node=number,
                )

    async def _watch_quorum(self, history: History, number: int) -> None:
        known: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            node = self._cluster.nodes[number]
            if node.state is not NodeState.RUNNING:
                continue
            incarnation = node.incarnation
            view = await self._quorum(number)
            if view is None or node.incarnation != incarnation:
                continue
            if (view.leader, view.epoch) != known:
                known = (view.leader, view.epoch)
                history.add(
                    "quorum",
                    Action.LEADER,
                    node=number,
                    offset=view.leader,
                    epoch=view.epoch,
                    text=str(incarnation),
                )
