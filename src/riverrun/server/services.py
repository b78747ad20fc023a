"""The services that request handlers use. A handler owns none of them.

``NodeServices`` exists on every node, ``BrokerServices`` only on brokers. Both are complete when
they are built, in ``node.py`` and ``broker_role.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from riverrun.cluster.active_controller import ActiveController
    from riverrun.cluster.configs.node_configs import Configs
    from riverrun.coordinator.coordinators import GroupCoordinators
    from riverrun.coordinator.transactions.coordinators import TransactionCoordinators
    from riverrun.metadata.metadata_log import MetadataLog
    from riverrun.model.ids import NodeId
    from riverrun.ports.aio import LogLimiter
    from riverrun.ports.clock import Clock
    from riverrun.ports.metrics import Metrics
    from riverrun.ports.randomness import Randomness
    from riverrun.replication.moves.copy_check import CopyChecker
    from riverrun.replication.replicas import Replicas
    from riverrun.replication.throttle import Throttle
    from riverrun.server.controller_link.lifecycle import Lifecycle
    from riverrun.server.controller_link.producer_ids import ProducerIds
    from riverrun.server.dispatch.broker_visibility import BrokerVisibility
    from riverrun.server.dispatch.forwarding import Forwarder
    from riverrun.server.dispatch.image_waits import ImageWaits
    from riverrun.server.dispatch.response_cache import ResponseCache
    from riverrun.server.facts.node_facts import NodeFacts
    from riverrun.server.fetch.session_cache import FetchSessions
    from riverrun.server.metrics.topic_traffic import TopicsTraffic
    from riverrun.server.network.memory import SendMemory
    from riverrun.server.security.access import AccessControl
    from riverrun.server.security.audit.audit_log import AuditLog
    from riverrun.server.security.client_quotas import ClientQuotas
    from riverrun.server.security.node_security import NodeSecurity
    from riverrun.server.settings import NodeSettings
    from riverrun.server.transactions.marker_connections import MarkerConnections
    from riverrun.server.transactions.transactional_produce import TransactionalProduces
    from riverrun.server.transactions.verification import TransactionVerifier
    from riverrun.storage.directory import LogDirectory
    from riverrun.storage.log_manager import LogManager


class NodeServices(Struct, frozen=True, kw_only=True, eq=False):
    settings: NodeSettings
    security: NodeSecurity
    access: AccessControl
    quotas: ClientQuotas
    audit: AuditLog | None
    """None if the node does not tell its users apart."""
    clock: Clock
    randomness: Randomness
    metrics: Metrics
    metadata: MetadataLog
    configs: Configs
    controller: ActiveController
    logs: LogDirectory
    log_manager: LogManager
    send_memory: SendMemory
    image_waits: ImageWaits
    response_cache: ResponseCache
    broker_visibility: BrokerVisibility
    brokers_by_connection: dict[int, NodeId]
    """The broker that sends heartbeats over a connection. If it breaks, the broker may be dead."""


class BrokerServices(NodeServices, frozen=True, kw_only=True, eq=False):
    forwarder: Forwarder
    replicas: Replicas
    leader_throttle: Throttle
    groups: GroupCoordinators
    transactions: TransactionCoordinators
    fetch_sessions: FetchSessions
    lifecycle: Lifecycle
    producer_ids: ProducerIds
    append_warnings: LogLimiter
    topics_traffic: TopicsTraffic
    verifier: TransactionVerifier
    transactional_produces: TransactionalProduces
    marker_connections: MarkerConnections
    copy_checker: CopyChecker
    facts: NodeFacts
