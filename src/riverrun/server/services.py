"""The services that request handlers use. A handler owns none of them.

``NodeServices`` exists on every node, ``BrokerServices`` only on brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.server.dispatch.broker_visibility import BrokerVisibility
from riverrun.server.dispatch.response_cache import ResponseCache

if TYPE_CHECKING:
    from riverrun.cluster.active_controller import ActiveController
    from riverrun.cluster.configs.node_configs import Configs
    from riverrun.coordinator.coordinators import GroupCoordinators
    from riverrun.metadata.metadata_log import MetadataLog
    from riverrun.model.ids import NodeId
    from riverrun.ports.aio import LogLimiter
    from riverrun.ports.clock import Clock
    from riverrun.ports.metrics import Metrics
    from riverrun.ports.randomness import Randomness
    from riverrun.replication.replicas import Replicas
    from riverrun.server.controller_link.lifecycle import Lifecycle
    from riverrun.server.controller_link.producer_ids import ProducerIds
    from riverrun.server.dispatch.forwarding import Forwarder
    from riverrun.server.dispatch.image_waits import ImageWaits
    from riverrun.server.dispatch.router import Router
    from riverrun.server.fetch.session_cache import FetchSessions
    from riverrun.server.network.memory import SendMemory
    from riverrun.server.settings import NodeSettings
    from riverrun.storage.directory import LogDirectory
    from riverrun.storage.log_manager import LogManager


@dataclass(slots=True, kw_only=True)
class NodeServices:
    settings: NodeSettings
    clock: Clock
    randomness: Randomness
    metrics: Metrics
    metadata: MetadataLog
    configs: Configs
    controller: ActiveController
    logs: LogDirectory
    log_runner: LogManager
    send_memory: SendMemory
    image_waits: ImageWaits
    response_cache: ResponseCache = field(default_factory=ResponseCache)
    broker_visibility: BrokerVisibility = field(default_factory=BrokerVisibility)
    controller_router: Router = field(init=False)
    brokers_by_connection: dict[int, NodeId] = field(default_factory=dict)
    """The brokers that send heartbeats over a connection. If it breaks, the broker may be dead."""


@dataclass(slots=True, kw_only=True)
class BrokerServices(NodeServices):
    forwarder: Forwarder = field(init=False)
    replicas: Replicas = field(init=False)
    groups: GroupCoordinators = field(init=False)
    fetch_sessions: FetchSessions = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    append_warnings: LogLimiter
