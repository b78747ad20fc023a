"""A cluster of fake nodes on real sockets: the real listener with handlers of the test."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.server.dispatch.router import Router
from riverrun.server.network.listener import Listener
from riverrun.server.network.settings import NetworkSettings
from riverrun.wire.apis import ALL_APIS, APIS, ApiKey
from riverrun.wire.messages.api_versions_response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from riverrun.wire.messages.find_coordinator_response import (
    Coordinator,
    FindCoordinatorResponse,
)
from riverrun.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from riverrun.wire.produce import ProduceResult, encode_produce_response, parse_produce

TOPIC_ID = UUID(int=77)


class FakeNode:
    """Records requests, and returns the listed error codes before it succeeds."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.received: list[ApiKey] = []
        self.port = 0
        self.produce_codes: list[ErrorCode | None] = []
        self.batches: list[bytes] = []
        self.versions = dict(APIS)
        self.versions.update((key, ALL_APIS[key]) for key in cluster.modules)
        self.features = dict(cluster.features)
        self.modules: dict[ApiKey, Any] = {
            ApiKey.API_VERSIONS: self._module(self._api_versions, ApiKey.API_VERSIONS),
            ApiKey.METADATA: self._module(self._metadata, ApiKey.METADATA),
            ApiKey.FIND_COORDINATOR: self._module(self._find_coordinator, ApiKey.FIND_COORDINATOR),
            ApiKey.PRODUCE: SimpleNamespace(handle_frame=self._produce),
            **cluster.modules,
        }
        clock, metrics = SystemClock(), Metrics()
        router = Router(
            object(), metrics=metrics, clock=clock, modules=self.modules, apis=self.versions
        )
        self.listener = Listener(
            router, NetworkSettings(stop_ms_max=0), clock=clock, metrics=metrics
        )

    def _module(self, handle: Any, key: ApiKey) -> Any:
        def counted(_: Any, context: Any, request: Any) -> Any:
            self.received.append(key)
            return handle(context, request)

        return SimpleNamespace(handle=counted)

    def _api_versions(self, _: Any, __: Any) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in self.versions.values()
        ]
        features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self.features.items()
        ]
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE, api_keys=tuple(keys), finalized_features=tuple(features)
        )

    def _metadata(self, _: Any, request: Any) -> MetadataResponse:
        nodes = [
            MetadataResponseBroker(node_id=node.node_id, host="127.0.0.1", port=node.port)
            for node in self.cluster.nodes.values()
        ]
        topics = []
        for wanted in request.topics or ():
            is_known = wanted.name == "t"
            partition = MetadataResponsePartition(
                error_code=ErrorCode.NONE, partition_index=0, leader_id=self.cluster.leader
            )
            topics.append(
                MetadataResponseTopic(
                    error_code=ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=wanted.name,
                    topic_id=TOPIC_ID if is_known else None,
                    partitions=(partition,) if is_known else (),
                )
            )
        return MetadataResponse(brokers=tuple(nodes), topics=tuple(topics), cluster_id="c")

    def _find_coordinator(self, _: Any, request: Any) -> FindCoordinatorResponse:
        node = self.cluster.nodes[self.cluster.coordinator]
        found = Coordinator(
            key=request.coordinator_keys[0],
            node_id=node.node_id,
            host="127.0.0.1",
            port=node.port,
            error_code=ErrorCode.NONE,
            error_message=None,
        )
        return FindCoordinatorResponse(coordinators=(found,))

    def _produce(self, _: Any, context: Any, buffer: memoryview, at: int) -> Any:
        self.received.append(ApiKey.PRODUCE)
        call = parse_produce(buffer, at, context.api_version)
        (wanted,) = call.partitions
        code: ErrorCode | None = ErrorCode.NONE
        if self.node_id != self.cluster.leader:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif self.produce_codes:
            code = self.produce_codes.pop(0)
        if code is ErrorCode.NONE:
            self.batches.append(bytes(buffer[wanted.start : wanted.end]))
        if call.acks == 0:
            return None
        assert code is not None, "the test breaks this connection"
        result = ProduceResult(wanted.topic, wanted.partition, code, len(self.batches) - 1)
        return encode_produce_response(context.api_version, [result])


class FakeCluster:
    def __init__(
        self,
        size: int = 1,
        modules: dict[ApiKey, Any] | None = None,
        features: dict[str, int] | None = None,
    ) -> None:
        self.modules = modules or {}
        self.features = features or {}
        self.leader = 1
        self.coordinator = 1
        self.nodes = {i: FakeNode(self, i) for i in range(1, size + 1)}

    async def __aenter__(self) -> FakeCluster:
        for node in self.nodes.values():
            node.port = await node.listener.start("PLAINTEXT", "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.listener.stop()

    def bootstrap(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", node.port) for node in self.nodes.values()]


def header_only_batch(producer_id: int) -> bytes:
    return struct.pack(">qiibIhiqqqhii", 0, 49, -1, 2, 0, 0, 0, 0, 0, producer_id, 0, 0, 1)
