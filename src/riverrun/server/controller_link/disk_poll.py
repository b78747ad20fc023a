"""Asks brokers for disks and sizes of replicas, while this node is the active controller.

Placement of new partitions uses the answers (``placement.policy=resource-aware``). They are soft
state: a broker that does not answer keeps its last measurement, and a new controller begins without
any, so placement goes by counts alone until its first round. Sizes of replicas are asked only when
a plan is made; a partition whose leader does not answer has the size that another replica reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.cluster.balance import PartitionLoad, PartitionLoads
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.placement.brokers import BrokerLoad
from riverrun.server.security.node_security import NodeSecurity
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_log_dirs_request import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from riverrun.wire.messages.describe_log_dirs_response import DescribeLogDirsResponse

POLL_SECONDS: Final = 60.0
ANSWER_SECONDS_MAX: Final = 5.0
CLIENT_ID: Final = "riverrun-disk-poll"


class DiskPoll:
    def __init__(
        self,
        placement: PlacementState,
        image: Callable[[], Image],
        is_active: Callable[[], bool],
        *,
        security: NodeSecurity,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._placement = placement
        self._image = image
        self._is_active = is_active
        self._security = security
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
            load = None if broker.is_fenced else await self._ask(broker)
            known = load or self._placement.loads.get(broker.id)
            if known is not None:
                loads[broker.id] = known
        self._placement.loads = loads

    async def sizes(self) -> PartitionLoads:
        """The size of each partition, as far as brokers answer."""
        image = self._image()
        sizes: dict[tuple[TopicName, int], int] = {}
        for broker in image.brokers.values():
            response = None if broker.is_fenced else await self._request(broker, None)
            for row in () if response is None else response.results:
                for topic in row.topics:
                    name = TopicName(topic.name)
                    for one in topic.partitions:
                        known = image.partition(name, PartitionIndex(one.partition_index))
                        key = (name, one.partition_index)
                        is_leader = known is not None and known.leader == broker.id
                        if is_leader or key not in sizes:
                            sizes[key] = one.partition_size
        return {key: PartitionLoad(size_bytes=float(size)) for key, size in sizes.items()}

    async def _ask(self, broker: BrokerImage) -> BrokerLoad | None:
        response = await self._request(broker, ())
        return None if response is None else self._load(broker.id, response)

    async def _request(
        self, broker: BrokerImage, topics: tuple[DescribableLogDirTopic, ...] | None
    ) -> DescribeLogDirsResponse | None:
        """None if the broker does not answer. ``topics`` None means the sizes of all replicas."""
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
                response: DescribeLogDirsResponse = await connection.request(
                    ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=topics)
                )
            finally:
                connection.close()
        except (OSError, UnsupportedApi, KafkaError):
            return None
        return response

    def _load(self, node: NodeId, response: DescribeLogDirsResponse) -> BrokerLoad | None:
        """The sum over directories. -1 means unknown (versions below 4)."""
        rows = [row for row in response.results if row.error_code is ErrorCode.NONE]
        if not rows or any(row.total_bytes < 0 or row.usable_bytes < 0 for row in rows):
            return None
        self._placement.totals.update(self._image())
        return BrokerLoad(
            disk_bytes=sum(row.total_bytes - row.usable_bytes for row in rows),
            disk_capacity=sum(row.total_bytes for row in rows),
            replicas=self._placement.totals.replicas(node),
        )
