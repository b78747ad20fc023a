"""A node for admin requests, with a metadata log in memory."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from riverrun.cluster.active_controller import ActiveController
from riverrun.metadata.description import QuorumDescription, ReplicaDescription
from riverrun.metadata.image import Image
from riverrun.metadata.quorum import Voter
from riverrun.model.errors import KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.metrics import Metrics
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.controller_link.producer_ids import ProducerIds
from riverrun.server.dispatch.broker_visibility import BrokerVisibility
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.forwarding import Forwarder
from riverrun.server.dispatch.response_cache import ResponseCache
from riverrun.server.dispatch.router import Router
from riverrun.server.network.settings import NetworkSettings
from riverrun.wire.apis import CONTROLLER_APIS, ApiKey
from riverrun.wire.codec import decode_response, encode_response
from tests.cluster.fakes import MemoryLog, SeededRandomness, make_configs
from tests.server.access import OPEN_ACCESS, no_quotas


class Node:
    """Handlers get ``services``. ``ask`` calls one of them and decodes its response."""

    def __init__(self, image: Image | None = None, given: Mapping[str, str] | None = None) -> None:
        self.log = MemoryLog(image)
        self.configs = make_configs(given)
        log: Any = self.log
        log.node_id = NodeId(1)
        log.epoch = 4
        log.high_watermark = log.end_offset = 17
        log.voters = (
            Voter(id=NodeId(1), directory_id=None, endpoints={"CONTROLLER": ("c", 9093)}),
        )
        log.is_active = True
        described = ReplicaDescription(
            id=NodeId(1),
            directory_id=None,
            log_end_offset=Offset(17),
            endpoints=log.voters[0].endpoints,
        )
        log.describe = lambda: QuorumDescription(
            leader=NodeId(1),
            epoch=LeaderEpoch(4),
            high_watermark=Offset(17),
            voters=(described,),
        )
        texts = dict(given or {})
        services = SimpleNamespace(
            access=OPEN_ACCESS,
            quotas=no_quotas(),
            audit=None,
            settings=SimpleNamespace(
                node_id=NodeId(1),
                topics=SimpleNamespace(
                    auto_create=texts.get("auto.create.topics.enable", "true") == "true"
                ),
                identity=SimpleNamespace(log_level="warning"),
                network=NetworkSettings(),
            ),
            clock=SimpleNamespace(now_ms=lambda: 99, monotonic=time.monotonic),
            randomness=SeededRandomness(),
            metadata=log,
            configs=self.configs,
            controller=ActiveController(log, self.configs),
            logs=SimpleNamespace(cluster_id="cluster-of-tests"),
            response_cache=ResponseCache(),
            brokers_by_connection={},
        )
        services.broker_visibility = BrokerVisibility(services.clock, NodeId(1))
        services.broker_visibility.published(None, log.current)
        self.services = cast(Any, services)
        clock: Any = self.services.clock
        self.router = Router(self.services, metrics=Metrics(), clock=clock, apis=CONTROLLER_APIS)
        channel = ControllerChannel(log, SeededRandomness(), router=self.router, name="test")
        lifecycle: Any = SimpleNamespace(
            identity=SimpleNamespace(node_id=NodeId(1)),
            epoch=max((broker.epoch for broker in self.log.current.brokers.values()), default=-1),
        )
        self.services.forwarder = Forwarder(self.services, self.router, channel)
        self.services.producer_ids = ProducerIds(lifecycle, channel)

    async def ask(
        self, api: ApiKey, version: int, request: Any, *, listener: str = "PLAINTEXT"
    ) -> Any:
        written = await self.written(api, version, request, listener=listener)
        return decode_response(api, version, written)

    async def written(
        self, api: ApiKey, version: int, request: Any, *, listener: str = "PLAINTEXT"
    ) -> bytes:
        module = import_module(f"riverrun.server.requests.{api.name.lower()}")
        context = RequestContext(version, 1, "test", "127.0.0.1", listener, 1)
        try:
            response = module.handle(self.services, context, request)
            if inspect.isawaitable(response):
                response = await response
        except KafkaError as error:
            response = module.failed(request, error.code, error.message)
        return response if isinstance(response, bytes) else encode_response(api, version, response)
