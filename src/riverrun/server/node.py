"""One node: builds its components in order, runs them, and stops them.

The start order is fixed. The data directory identifies the node, the metadata log lists the topics,
and recovery checks the logs. Only then is the broker registered and the client listener opened. The
controller listener opens earlier, because the metadata needs a quorum. If a component cannot
continue (a failed flush, a broken invariant), the node stops: a stopped broker is safe, a wrong one
is not.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import structlog

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.configs.node_configs import Configs
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.model.invariants import InvariantViolation
from riverrun.ports.aio import OwnedTasks
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.raft.messages import Request
from riverrun.server.broker_role import BrokerRole
from riverrun.server.controller_link.auto_balance import planner_for
from riverrun.server.controller_link.balancing import start_balancing
from riverrun.server.controller_link.channel import ControllerChannels
from riverrun.server.controller_link.controller_registration import ControllerRegistration
from riverrun.server.controller_link.lifecycle import Phase
from riverrun.server.controller_link.probe import BrokerProbe
from riverrun.server.dispatch.broker_visibility import BrokerVisibility
from riverrun.server.dispatch.context import CONTROLLER, Peer
from riverrun.server.dispatch.forwarding import Forwarder
from riverrun.server.dispatch.image_waits import ImageWaits
from riverrun.server.dispatch.response_cache import ResponseCache
from riverrun.server.dispatch.router import Router
from riverrun.server.dispatch.routers import build_broker_router, build_controller_router
from riverrun.server.formation.decision import Formed
from riverrun.server.formation.formation import Formation
from riverrun.server.garbage import Loading
from riverrun.server.logs import error_text
from riverrun.server.network.connection_limits import ConnectionLimits
from riverrun.server.network.console_relay import console_for
from riverrun.server.network.http import HttpServer
from riverrun.server.network.listener import Listener
from riverrun.server.network.live_settings import listener_updates
from riverrun.server.network.memory import SendMemory
from riverrun.server.quorum.metrics import declare_quorum_metrics
from riverrun.server.quorum.network import QuorumNetwork
from riverrun.server.quorum.rejoining import Rejoining
from riverrun.server.security.access import AccessControl
from riverrun.server.security.audit.audit_log import AuditLog, build_audit
from riverrun.server.security.client_quotas import build_quotas
from riverrun.server.security.first_user import first_user_records
from riverrun.server.security.node_security import NodeSecurity, build_security
from riverrun.server.security.request_throttle import RequestThrottle
from riverrun.server.security.token_expiry import start_token_expiry
from riverrun.server.services import NodeServices
from riverrun.server.settings import Address, NodeSettings, declared_settings
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log_manager import LogManager

log = structlog.get_logger("riverrun")


class Node:
    """A node from start to stop. Clock, files, randomness and sockets are arguments."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        files: Files,
        clock: Clock,
        randomness: Randomness,
        boot_id: str = "",
        sockets: Mapping[Address, socket.socket] | None = None,
        loading: Loading = nullcontext,
    ) -> None:
        """``boot_id`` identifies the current boot of the machine; empty if unknown. ``sockets``
        are listening sockets for client addresses, passed by a service manager. Metadata and logs
        are loaded in ``loading`` contexts, in which the node does not wait for other nodes.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.is_serving = False
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._boot_id = boot_id
        self._sockets = dict(sockets or {})
        self._loading = loading
        self._stopping = asyncio.Event()
        self._directory_failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_recovering = False
        self._tasks = OwnedTasks(lambda name, error: self._fail(error, component=name))
        # None until ``_start`` creates them
        self._directory: LogDirectory | None = None
        self._log_manager: LogManager | None = None
        self._network: QuorumNetwork | None = None
        self._metadata: MetadataLog | None = None
        self._channels: ControllerChannels | None = None
        self._listener: Listener | None = None
        self._http: HttpServer | None = None
        self._broker: BrokerRole | None = None
        self._security: NodeSecurity | None = None
        self._audit: AuditLog | None = None

    def reload_certificates(self) -> None:
        """Read all certificates again (SIGHUP)."""
        if self._security is not None and self._security.certificates is not None:
            self._security.certificates.reload(is_forced=True)

    @property
    def metadata(self) -> MetadataLog | None:
        """Exposed for the simulator. None until the metadata log is open."""
        return self._metadata

    # Start

    async def start(self) -> bool:
        """Start the node. Returns whether it serves; False if it was stopped meanwhile.

        A node may wait for its seeds or for a majority of the quorum without a limit.
        """
        starting = asyncio.ensure_future(self._start())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (starting, stopping):
                task.cancel()
            await asyncio.wait((starting, stopping))
        if not starting.cancelled():
            starting.result()
        self.is_serving = not starting.cancelled() and not self._stopping.is_set()
        return self.is_serving

    def count_logs(self) -> int:
        """The number of replicas on this node."""
        return 0 if self._directory is None else len(self._directory.logs)

    async def _start(self) -> None:
        began = self._clock.monotonic()
        settings = self.settings
        ports = self._clock, self._randomness, self.metrics, self._tasks
        self._audit = build_audit(settings, *ports)
        security = self._security = build_security(settings, self._image, *ports, self._audit)
        services = await self._build_services(security)
        router = build_controller_router(services, on_bug=self._handler_failed)
        channels = self._channels = ControllerChannels(
            services.metadata, self._randomness, router, security.to_controllers
        )
        listener = self._listener = self._build_listener(services, router)
        services.metadata.subscribe(services.broker_visibility.published)
        services.metadata.subscribe(services.image_waits.published)
        services.metadata.subscribe(listener_updates(services, listener))
        services.metadata.subscribe(services.quotas.published)
        services.metadata.on_leadership(services.controller.on_leadership)
        self._tasks.start(services.controller.run(), name="controller")
        start_balancing(services, self._tasks, planner_for(self._files))
        start_token_expiry(services, self._tasks)
        self._tasks.start(services.metadata.run(), name="metadata log")
        controller = settings.controller_address()
        if controller is not None:
            await listener.start(controller.name, controller.host, controller.port)
        await self._start_http()
        await services.metadata.caught_up()
        if settings.formation.is_controller and controller is not None:
            self._register_controller(services, channels)
        if settings.formation.is_broker:
            await self._start_broker(services, router, channels, listener)
        log.info(
            "node is up",
            cluster=services.logs.cluster_id,
            partitions=len(services.logs.logs),
            clients=", ".join(f"{a.host}:{a.port}" for a in settings.advertised()),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    def _image(self) -> Image:
        """The newest published metadata; empty until the metadata log is open."""
        return Image() if self._metadata is None else self._metadata.current

    async def _build_services(self, security: NodeSecurity) -> NodeServices:
        settings = self.settings
        directory = self._directory = LogDirectory.open(
            self._files,
            settings.data_directory,
            node_id=settings.node_id,
            clock=self._clock,
            randomness=self._randomness,
            metrics=self.metrics,
            settings=settings.directory,
            on_failure=self._directory_failed.set,
        )
        formed = await Formation(
            settings,
            directory,
            files=self._files,
            clock=self._clock,
            randomness=self._randomness,
            security=security,
            stopping=self._stopping,
            sockets=self._sockets,
        ).form()
        log_manager = self._log_manager = LogManager(
            directory, clock=self._clock, metrics=self.metrics, cleaner=settings.cleaner
        )
        with self._loading():
            metadata = self._metadata = await self._open_metadata(
                directory, log_manager, formed, security
            )
        declare_quorum_metrics(self.metrics, metadata)
        configs = Configs(
            declared_settings(), given=settings.given, node_id=settings.node_id, log=settings.log
        )
        return NodeServices(
            settings=settings,
            security=security,
            access=AccessControl(settings.authorization, self._image, self._audit),
            quotas=build_quotas(settings, security, self._clock, self.metrics),
            audit=self._audit,
            clock=self._clock,
            randomness=self._randomness,
            metrics=self.metrics,
            metadata=metadata,
            configs=configs,
            controller=ActiveController(
                metadata,
                configs,
                clock=self._clock,
                settings=settings.controller,
                probe=BrokerProbe(lambda: metadata.newest),
                metrics=self.metrics,
                founding=partial(first_user_records, settings.authorization, self._randomness),
            ),
            logs=directory,
            log_manager=log_manager,
            send_memory=SendMemory(settings.network.unsent_bytes_max),
            image_waits=ImageWaits(lambda: metadata.current),
            response_cache=ResponseCache(),
            broker_visibility=BrokerVisibility(self._clock, settings.node_id),
            brokers_by_connection={},
        )

    async def _open_metadata(
        self,
        directory: LogDirectory,
        log_manager: LogManager,
        formed: Formed,
        security: NodeSecurity,
    ) -> MetadataLog:
        settings = self.settings
        controller = settings.controller_advertised()
        endpoints = {controller.name: (controller.host, controller.port)} if controller else {}
        store = directory.open_metadata(settings.metadata)
        rejoining = Rejoining(self._files, store.path, settings.node_id)

        async def before_request(request: Request) -> None:
            if rejoining.is_begun_by(request):
                await log_manager.in_thread(rejoining.intend)

        network = self._network = QuorumNetwork(
            formed.cluster_id,
            settings.quorum,
            name=f"riverrun-{settings.node_id}",
            before=before_request,
            security=security.to_controllers,
        )
        metadata = await MetadataLog.open(
            store,
            files=self._files,
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            controller_endpoints=endpoints,
            clock=self._clock,
            settings=settings.metadata,
            quorum_settings=settings.quorum,
            randomness=self._randomness,
            is_controller=settings.formation.is_controller,
            joins=settings.formation.auto_join or rejoining.is_intended,
            bootstrap=formed.bootstrap,
            renew_directory=directory.renew_id,
            network=network,
        )

        async def finish_rejoining() -> None:
            if rejoining.is_finished(metadata.me, metadata.voters):
                await log_manager.in_thread(rejoining.forget)

        def published(_delta: Delta, _image: Image) -> None:
            if rejoining.is_intended and not self._stopping.is_set():
                self._tasks.start(finish_rejoining(), name="rejoining")

        metadata.subscribe(published)
        return metadata

    def _build_listener(self, services: NodeServices, controller_router: Router) -> Listener:
        def closed(peer: Peer) -> None:
            """Let the controller probe a broker whose connection broke."""
            node = services.brokers_by_connection.pop(peer.connection_id, None)
            if node is not None and not self._stopping.is_set():
                services.controller.connection_lost(node)

        return Listener(
            controller_router,
            self.settings.network,
            clock=self._clock,
            metrics=self.metrics,
            send_memory=services.send_memory,
            closed=closed,
            guards=services.security.guards,
            limits=ConnectionLimits(
                self.settings.network,
                self.settings.given,
                (CONTROLLER, services.quotas.exempt_listener or CONTROLLER),
                services.quotas.connection_rate,
            ),
        )

    def _register_controller(self, services: NodeServices, channels: ControllerChannels) -> None:
        address = self.settings.controller_advertised()
        assert address is not None, "a controller without an address"
        registration = ControllerRegistration(
            services, channels.open("registration"), address, self._randomness.uuid()
        )
        self._tasks.start(registration.run(), name="controller registration")

    async def _start_http(self) -> None:
        if address := self.settings.identity.http_listener:
            console = console_for(self.settings)
            self._http = HttpServer(self.metrics, self.health, self._prepare_metrics, console)
            await self._http.start_at(address)

    async def _start_broker(
        self,
        services: NodeServices,
        controller_router: Router,
        channels: ControllerChannels,
        listener: Listener,
    ) -> None:
        with self._loading():
            self._is_recovering = True
            await services.log_manager.recover(
                lambda topic: services.configs.log_settings(services.metadata.current, topic)
            )
            self._is_recovering = False
            broker = self._broker = BrokerRole(
                services,
                forwarder=Forwarder(services, controller_router, channels.open("forwarding")),
                channels=channels,
                tasks=self._tasks,
                boot_id=self._boot_id,
                listener=listener,
                directory_failed=self._directory_failed,
                on_bug=self._fail,
            )
        await broker.register()
        broker.start()
        throttle = RequestThrottle(services.quotas, services.access, listener.mute)
        router = build_broker_router(broker.services, throttle, on_bug=self._handler_failed)
        for address in self.settings.client_addresses():
            if address not in self._sockets:
                await listener.start(address.name, address.host, address.port, router=router)
        await broker.serve()
        # Clients that already wait on a passed socket are served when the broker is unfenced.
        # Before that their metadata would not contain this broker.
        for address in list(self._sockets):
            passed = self._sockets.pop(address)
            await listener.start(address.name, address.host, address.port, passed, router=router)

    # Run

    async def run(self) -> BaseException | None:
        """Serve until a stop is requested or a component fails. Returns the failure, if any."""
        await self._stopping.wait()
        await self.stop()
        return self._failure

    def request_stop(self, reason: str) -> None:
        """Begin to stop. ``run`` returns when the node has stopped."""
        log.info("stopping", reason=reason)
        self._stopping.set()

    def _handler_failed(self, error: BaseException) -> None:
        """A bug in a handler closes the connection. A broken invariant stops the node."""
        trace = "".join(traceback.format_exception(error))
        log.error("request failed", error=error_text(error), trace=trace)
        if isinstance(error, InvariantViolation):
            self._fail(error)

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Exception handler of the event loop: for callbacks and tasks that no one awaits. A broken
        invariant stops the node here too; other errors are logged by the loop."""
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            self._fail(error)
        else:
            loop.default_exception_handler(dict(context))

    def _fail(self, error: BaseException, **context: str) -> None:
        log.error("node must stop", error=error_text(error), **context)
        self._failure = self._failure or error
        self._stopping.set()

    def health(self) -> Mapping[str, object]:
        """The content of ``/health/ready``."""
        offline = self._directory.offline_reason if self._directory is not None else None
        broker, metadata = self._broker, self._metadata
        phase = broker.services.lifecycle.phase if broker is not None else None
        is_unfenced = phase is Phase.SERVING or not self.settings.formation.is_broker
        is_ready = self.is_serving and is_unfenced and not self._stopping.is_set() and not offline
        leader = metadata.leader if metadata is not None else None
        return {
            "ready": is_ready,
            "node": int(self.settings.node_id),
            "log_directory": offline or "online",
            "replicas": broker.replica_health() if broker is not None else {},
            "failure": error_text(self._failure) if self._failure is not None else None,
            "broker": phase.value if phase is not None else None,
            "quorum": None
            if metadata is None
            else {
                "leader": None if leader is None else int(leader),
                "epoch": int(metadata.epoch),
                "voters": [int(voter.id) for voter in metadata.voters],
                "is_active_controller": metadata.is_active,
                "metadata_offset": int(metadata.current.offset),
            },
        }

    async def _prepare_metrics(self) -> None:
        if self._broker is not None and self.is_serving:
            await self._broker.prepare_metrics()

    # Stop

    async def stop(self) -> None:
        """Hand over leadership, complete the requests in flight, and flush all logs."""
        await self._hand_over()
        self.is_serving = False
        for passed in self._sockets.values():
            passed.close()
        if self._listener is not None:
            await self._listener.stop(waits_for_requests=self._failure is None)
        if self._http is not None:
            await self._http.stop()
        if self._audit is not None:
            await self._audit.close()
        if self._broker is not None:
            await self._broker.stop()
        await self._tasks.close()
        if self._channels is not None:
            self._channels.close()
        if self._network is not None:
            self._network.close()
        if self._metadata is not None:
            await self._tolerate_disk_failure(self._metadata.stop())
        if self._log_manager is not None:
            # A start that failed during recovery must not mark the logs as clean.
            is_clean = not self._is_recovering and self._failure is None
            epoch = self._broker.epoch if self._broker is not None else -1
            await self._tolerate_disk_failure(
                self._log_manager.stop(clean=is_clean, broker_epoch=epoch)
            )
        if self._directory is not None:
            self._directory.close()
        log.info("node is down")

    async def _tolerate_disk_failure(self, step: Coroutine[Any, Any, None]) -> None:
        """If the disk fails during the stop, record the failure and close the rest."""
        try:
            await step
        except OSError as error:
            log.error("disk failed during the stop", error=error_text(error))
            self._failure = self._failure or error

    async def _hand_over(self) -> None:
        """Let other nodes lead, first the partitions, then the quorum. Clients are still served."""
        if self._failure is not None or not self.is_serving:
            return
        settings = self.settings.controller
        if self._broker is not None and settings.controlled_shutdown:
            limit_s = settings.controlled_shutdown_timeout_ms / 1000
            await self._broker.services.lifecycle.leave(limit_s)
        if self._metadata is not None:
            await self._metadata.resign()
