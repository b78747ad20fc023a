"""Asks brokers for disks, traffic and sizes of replicas, while this is the active controller.

Placement of new partitions uses the answers (``placement.policy=resource-aware``). They are soft
state: a broker that does not answer keeps its last measurement, and a new controller begins without
any, so placement goes by counts alone until its first round. Sizes and rates of partitions are
asked only when a plan is made. A partition whose leader does not answer has the size that another
replica reports. If a broker does not know its traffic, the plan goes by sizes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.cluster.balance import PartitionLoad, PartitionLoads
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.placement.brokers import BrokerLoad
from riverrun.placement.traffic import BrokerTraffic, ClusterTraffic
from riverrun.ports.aio import Yielder
from riverrun.ports.clock import Clock
from riverrun.server.security.node_security import NodeSecurity
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from riverrun.wire.messages.describe_log_dirs_response import DescribeLogDirsResponse
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from riverrun.wire.private.describe_node_response import DescribeNodeResponse

POLL_SECONDS: Final = 60.0
ANSWER_SECONDS_MAX: Final = 5.0
CLIENT_ID: Final = "riverrun-disk-poll"


class BrokerAnswer(Struct, frozen=True, kw_only=True):
    """``traffic`` is None if the broker does not know it, or is not one of riverrun."""

    directories: DescribeLogDirsResponse
    traffic: BrokerTraffic | None


class DiskPoll:
    def __init__(
        self,
        placement: PlacementState,
        image: Callable[[], Image],
        is_active: Callable[[], bool],
        *,
        security: NodeSecurity,
        clock: Clock,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._placement = placement
        self._image = image
        self._is_active = is_active
        self._security = security
        self._clock = clock
        self._poll_seconds = poll_seconds

    async def run(self) -> None:
        """Until cancelled. One broker after the other: a round has the whole interval."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            if self._is_active():
                await self.poll()
            else:
                self._placement.loads = {}

    async def poll(self) -> None:
        """One round."""
        loads: dict[NodeId, BrokerLoad] = {}
        for broker in self._image().brokers.values():
            answer = None if broker.is_fenced else await self._ask(broker, has_partitions=False)
            load = None if answer is None else self._load(broker.id, answer)
            known = load or self._placement.loads.get(broker.id)
            if known is not None:
                loads[broker.id] = known
        self._placement.loads = loads

    async def partition_loads(self) -> PartitionLoads:
        """The size and the rates of each partition, as far as brokers answer."""
        image, yielder = self._image(), Yielder(self._clock)
        sizes: dict[tuple[TopicName, int], int] = {}
        answered: dict[NodeId, BrokerTraffic] = {}
        asked = [broker for broker in image.brokers.values() if not broker.is_fenced]
        for broker in asked:
            answer = await self._ask(broker, has_partitions=True)
            if answer is None:
                continue
            if answer.traffic is not None:
                answered[broker.id] = answer.traffic
            for row in answer.directories.results:
                for topic in row.topics:
                    name = TopicName(topic.name)
                    for one in topic.partitions:
                        known = image.partition(name, PartitionIndex(one.partition_index))
                        key = (name, one.partition_index)
                        is_leader = known is not None and known.leader == broker.id
                        if is_leader or key not in sizes:
                            sizes[key] = one.partition_size
                        await yielder.step()
        traffic = ClusterTraffic(answered, (broker.id for broker in asked))
        loads: dict[tuple[TopicName, int], PartitionLoad] = {}
        for (name, index), size in sizes.items():
            known = image.partition(name, PartitionIndex(index))
            rates = traffic.planned(name, None if known is None else known.leader)
            loads[name, index] = PartitionLoad(
                size_bytes=float(size), bytes_in=rates.bytes_in, bytes_out=rates.bytes_out
            )
            await yielder.step()
        return loads

    async def _ask(self, broker: BrokerImage, *, has_partitions: bool) -> BrokerAnswer | None:
        """None if the broker does not answer. ``has_partitions`` asks also for the sizes of all
        replicas and the rates of all topics."""
        endpoint = self._security.endpoint_of(broker)
        if endpoint is None:
            return None
        try:
            connection = await Connection.connect(
                endpoint.host,
                endpoint.port,
                client_id=CLIENT_ID,
                timeout_s=ANSWER_SECONDS_MAX,
                connect_timeout_s=ANSWER_SECONDS_MAX,
                security=self._security.to_brokers(),
            )
            try:
                directories: DescribeLogDirsResponse = await connection.request(
                    ApiKey.DESCRIBE_LOG_DIRS,
                    DescribeLogDirsRequest(topics=None if has_partitions else ()),
                )
                traffic = await _ask_traffic(connection, has_topics=has_partitions)
            finally:
                connection.close()
        except (OSError, UnsupportedApi, KafkaError):
            return None
        return BrokerAnswer(directories=directories, traffic=traffic)

    def _load(self, node: NodeId, answer: BrokerAnswer) -> BrokerLoad | None:
        """The sum over directories. -1 means unknown (versions below 4)."""
        rows = [row for row in answer.directories.results if row.error_code is ErrorCode.NONE]
        if not rows or any(row.total_bytes < 0 or row.usable_bytes < 0 for row in rows):
            return None
        self._placement.totals.update(self._image())
        return BrokerLoad(
            disk_bytes=sum(row.total_bytes - row.usable_bytes for row in rows),
            disk_capacity=sum(row.total_bytes for row in rows),
            bytes_in=None if answer.traffic is None else answer.traffic.bytes_taken,
            bytes_out=None if answer.traffic is None else answer.traffic.bytes_out,
            replicas=self._placement.totals.replicas(node),
        )


async def _ask_traffic(connection: Connection, *, has_topics: bool) -> BrokerTraffic | None:
    query = msgspec.json.encode({"topics": has_topics}).decode()
    try:
        response: DescribeNodeResponse = await connection.request(
            ApiKey.DESCRIBE_NODE,
            DescribeNodeRequest(subject="traffic", query=query),
            version=0,
        )
        if response.error_code is not ErrorCode.NONE:
            return None  # an older version
        traffic = msgspec.json.decode(response.content, type=BrokerTraffic)
    except (OSError, UnsupportedApi, KafkaError, msgspec.DecodeError):
        return None  # Apache Kafka closes the connection
    return traffic if traffic.is_measured else None
