"""One node: builds every part, connects them, and takes them down again.

The order of the start is the order of trust: the directory says who we are, the metadata log says
what exists, recovery says what survived; only then is the node registered and the listener opened.
Other nodes are listened to earlier, since without a quorum there is no metadata. A part that cannot
go on (a failed sync, a broken invariant) stops the node: a stopped broker is safe, a wrong one is
not.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import structlog

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.cluster.configs.node_configs import Configs
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.model.invariants import InvariantViolation
from riverrun.ports.aio import LogLimiter, OwnedTasks
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.raft.messages import Request
from riverrun.server.controller_link import clean_shutdown
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.controller_link.controller_registration import ControllerRegistration
from riverrun.server.controller_link.lifecycle import Identity, Phase
from riverrun.server.controller_link.probe import BrokerProbe
from riverrun.server.dispatch.context import CONTROLLER, Peer
from riverrun.server.dispatch.forwarding import Forwarder
from riverrun.server.dispatch.image_waits import ImageWaits
from riverrun.server.dispatch.router import Router
from riverrun.server.formation.decision import Formed
from riverrun.server.formation.formation import Formation
from riverrun.server.logs import error_text
from riverrun.server.network.http import HttpServer
from riverrun.server.network.listener import Listener
from riverrun.server.network.memory import SendMemory
from riverrun.server.quorum.metrics import declare_quorum_metrics
from riverrun.server.quorum.network import QuorumNetwork
from riverrun.server.quorum.rejoining import Rejoining
from riverrun.server.services import BrokerServices
from riverrun.server.serving import Serving
from riverrun.server.settings import Address, NodeSettings, declared_settings
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log_manager import LogManager
from riverrun.wire.apis import CONTROLLER_ROUTES, ApiKey

log = structlog.get_logger("riverrun")

CONTROLLER_MODULES: Final[Mapping[int, str]] = {ApiKey.FETCH: "quorum_fetch"}
"""Where the handlers for controllers are not named as their API."""
APPEND_WARNING_SECONDS: Final = 10.0
"""Log failed appends at most this often for each partition."""


class Node:
    """A node from start to stop. Everything that the world gives it comes in here."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        files: Files,
        clock: Clock,
        randomness: Randomness,
        boot_id: str = "",
        sockets: Mapping[Address, socket.socket] | None = None,
    ) -> None:
        """``boot_id`` identifies the current boot of the machine; empty if unknown. ``sockets``
        are listening sockets for client addresses, passed by a service manager.
        """
        self.settings = settings
        self.metrics = Metrics()
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._boot_id = boot_id
        self._sockets = dict(sockets or {})
        self._ending = asyncio.Event()
        self._failure: BaseException | None = None
        self.is_serving = False
        self._tasks = OwnedTasks(self._part_failed)
        self._directory: LogDirectory | None = None
        self._log_runner: LogManager | None = None
        self._network: QuorumNetwork | None = None
        self._metadata: MetadataLog | None = None
        self._serving: Serving | None = None
        self._listener: Listener | None = None
        self._http: HttpServer | None = None
        self._services: BrokerServices | None = None
        self._channels: list[ControllerChannel] = []
        self._rejoining: Rejoining | None = None

    @property
    def metadata(self) -> MetadataLog | None:
        """For who looks on: what this node knows of the cluster; None before that is opened."""
        return self._metadata

    @property
    def services(self) -> BrokerServices | None:
        """For who looks on."""
        return self._services

    # -- Starting ---------------------------------------------------------------------------------

    async def start(self) -> bool:
        """Come up; whether clients are served when this returns, or a stop came first.

        A node may wait for its seeds or for a majority of the quorum as long as it takes.
        """
        starting = asyncio.ensure_future(self._start())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (starting, ending):
                if not task.done():
                    task.cancel()
            await asyncio.wait((starting, ending))
        if not starting.cancelled():
            starting.result()
        self.is_serving = not starting.cancelled() and not self._ending.is_set()
        return self.is_serving

    async def _start(self) -> None:
        began = self._clock.monotonic()
        settings = self.settings
        services = await self._build()
        listener = self._listener = self._build_listener(services)
        controller = settings.controller_address()
        if controller is not None:
            await listener.start(controller.name, controller.host, controller.port)
        await self._start_http()
        await services.metadata.caught_up()
        if settings.formation.is_controller and controller is not None:
            self._register_controller(services)
        if settings.formation.is_broker:
            serving = self._serving = self._build_serving(services)
            await serving.build()
            await serving.register()
            serving.start()
            for address in settings.client_addresses():
                if address not in self._sockets:
                    await listener.start(address.name, address.host, address.port)
            await serving.serve()
            # Clients that already wait on a passed socket are served when the broker is unfenced.
            # Before that their metadata would not contain this broker.
            for address in list(self._sockets):
                passed = self._sockets.pop(address)
                await listener.start(address.name, address.host, address.port, passed)
        log.info(
            "node is up",
            cluster=services.logs.cluster_id,
            partitions=len(services.logs.logs),
            clients=", ".join(f"{a.host}:{a.port}" for a in settings.advertised()),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    async def _build(self) -> BrokerServices:
        settings = self.settings
        directory = LogDirectory.open(
            self._files,
            settings.data_directory,
            node_id=settings.node_id,
            clock=self._clock,
            randomness=self._randomness,
            metrics=self.metrics,
            settings=settings.directory,
        )
        self._directory = directory
        formed = await Formation(
            settings,
            directory,
            files=self._files,
            clock=self._clock,
            randomness=self._randomness,
            stopping=self._ending,
            sockets=self._sockets,
        ).form()
        log_runner = self._log_runner = LogManager(
            directory, clock=self._clock, metrics=self.metrics, cleaner=settings.cleaner
        )
        metadata = self._metadata = await self._open_metadata(directory, formed)
        configs = Configs(
            declared_settings(), given=settings.given, node_id=settings.node_id, log=settings.log
        )
        controller = ActiveController(
            metadata,
            configs,
            clock=self._clock,
            settings=settings.controller,
            probe=BrokerProbe(lambda: metadata.newest),
            metrics=self.metrics,
        )
        services = self._services = BrokerServices(
            settings=settings,
            clock=self._clock,
            randomness=self._randomness,
            metrics=self.metrics,
            metadata=metadata,
            configs=configs,
            controller=controller,
            logs=directory,
            log_runner=log_runner,
            send_memory=SendMemory(settings.network.unsent_bytes_max),
            image_waits=ImageWaits(lambda: metadata.current),
            append_warnings=LogLimiter(self._clock, interval_seconds=APPEND_WARNING_SECONDS),
        )
        services.forwarder = Forwarder(services, self._channel("forwarding"))
        declare_quorum_metrics(self.metrics, metadata)
        metadata.subscribe(self._published)
        self._own("controller", controller.run())
        metadata.on_leadership(controller.on_leadership)
        self._own("metadata log", metadata.run())
        return services

    def _build_listener(self, services: BrokerServices) -> Listener:
        services.controller_router = Router(
            services,
            metrics=self.metrics,
            clock=self._clock,
            apis=CONTROLLER_ROUTES,
            names=CONTROLLER_MODULES,
            on_bug=self._handler_failed,
        )
        return Listener(
            Router(
                services,
                metrics=self.metrics,
                clock=self._clock,
                forward=services.forwarder.forward,
                on_bug=self._handler_failed,
            ),
            self.settings.network,
            clock=self._clock,
            metrics=self.metrics,
            send_memory=services.send_memory,
            routers={CONTROLLER: services.controller_router},
            closed=self._connection_closed,
        )

    def _build_serving(self, services: BrokerServices) -> Serving:
        async def registered(epoch: int) -> None:
            await services.log_runner.in_thread(
                lambda: clean_shutdown.remember(self._files, services.logs, self._boot_id, epoch)
            )

        return Serving(
            services,
            own=self._own,
            bug=self._bug,
            channel=self._channel,
            identity=lambda: self._identity(services),
            registered=registered,
        )

    def _identity(self, services: BrokerServices) -> Identity:
        assert services.logs.cluster_id is not None, "registered without a cluster"
        return Identity(
            node_id=self.settings.node_id,
            cluster_id=services.logs.cluster_id,
            incarnation=self._randomness.uuid(),
            listeners=self.settings.advertised(),
            rack=self.settings.identity.rack or None,
            directories=(services.logs.directory_id,),
            features=SUPPORTED_FEATURES,
            previous_epoch=clean_shutdown.continued_epoch(
                self._files,
                services.logs,
                self._boot_id,
                is_missing=services.replicas.is_any_missing(services.metadata.current),
            ),
        )

    def _channel(self, name: str) -> ControllerChannel:
        services = self._services
        assert services is not None, "a channel before the node is built"
        channel = ControllerChannel(
            services.metadata,
            self._randomness,
            router=lambda: services.controller_router,
            name=f"riverrun-{name}",
        )
        self._channels.append(channel)
        return channel

    def _register_controller(self, services: BrokerServices) -> None:
        address = self.settings.controller_advertised()
        assert address is not None, "a controller that nobody can reach"
        registration = ControllerRegistration(
            services, self._channel("registration"), address, self._randomness.uuid()
        )
        self._own("controller registration", registration.run())

    def _connection_closed(self, peer: Peer) -> None:
        """The broker behind it may be dead: the controller finds out."""
        services = self._services
        assert services is not None, "a connection before there was anything to connect to"
        node = services.brokers_by_connection.pop(peer.connection_id, None)
        if node is not None and not self._ending.is_set():
            services.controller.connection_lost(node)

    async def _open_metadata(self, directory: LogDirectory, formed: Formed) -> MetadataLog:
        settings = self.settings
        controller = settings.controller_advertised()
        endpoints = {controller.name: (controller.host, controller.port)} if controller else {}
        self._network = QuorumNetwork(
            formed.cluster_id,
            settings.quorum,
            name=f"riverrun-{settings.node_id}",
            before=self._before_asking,
        )
        store = directory.open_metadata(settings.metadata)
        self._rejoining = Rejoining(self._files, store.path, settings.node_id)
        return await MetadataLog.open(
            store,
            files=self._files,
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            controller_endpoints=endpoints,
            clock=self._clock,
            settings=settings.metadata,
            cluster_settings={},
            quorum_settings=settings.quorum,
            randomness=self._randomness,
            is_controller=settings.formation.is_controller,
            joins=settings.formation.auto_join or self._rejoining.is_intended,
            bootstrap=formed.bootstrap,
            renew_directory=directory.renew_id,
            network=self._network,
        )

    async def _before_asking(self, request: Request) -> None:
        rejoining, log_runner = self._rejoining, self._log_runner
        if rejoining is not None and log_runner is not None and rejoining.is_begun_by(request):
            await log_runner.in_thread(rejoining.intend)

    async def _forget_rejoining(self) -> None:
        """Once this node votes with the directory that it has."""
        rejoining, services = self._rejoining, self._services
        if rejoining is None or services is None or not rejoining.is_intended:
            return
        me = services.metadata.me
        if any(
            v.id == me.id and v.directory_id == me.directory_id for v in services.metadata.voters
        ):
            await services.log_runner.in_thread(rejoining.forget)

    async def _start_http(self) -> None:
        address = self.settings.identity.http_listener
        if address:
            host, _, port = address.rpartition(":")
            self._http = HttpServer(self.metrics, self.health)
            await self._http.start(host, int(port))

    # -- Running ----------------------------------------------------------------------------------

    def _own(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the node beside the others. The node stops if the part fails."""
        self._tasks.start(work, name=name)

    def _part_failed(self, part: str, error: BaseException) -> None:
        log.error("node must stop", part=part, error=error_text(error))
        self._failure = self._failure or error
        self._ending.set()

    def _handler_failed(self, error: BaseException) -> None:
        """Handle an error that a request handler did not expect. The router closes the connection.

        The node stops too if the error may have left state half changed.
        """
        trace = "".join(traceback.format_exception(error))
        log.error("a request failed", error=error_text(error), trace=trace)
        if isinstance(error, InvariantViolation):
            self._bug(error)

    def _bug(self, error: BaseException) -> None:
        log.error("node must stop", error=error_text(error))
        self._failure = self._failure or error
        self._ending.set()

    def _published(self, delta: Delta, image: Image) -> None:
        """Limits of connections may be changed while the node runs."""
        if self._services is not None:
            self._services.image_waits.published(delta, image)
        if self._rejoining is not None and self._rejoining.is_intended:
            self._own("rejoining", self._forget_rejoining())
        is_changed = any(kind is ConfigType.BROKER for kind, _ in delta.changed_configs)
        if is_changed and self._listener is not None and self._services is not None:
            network = self._services.configs.effective(image, self.settings.network)
            self._listener.configure(network)

    def request_stop(self, why: str) -> None:
        """Begin to stop; ``run`` returns when it is done."""
        log.info("stopping", why=why)
        self._ending.set()

    async def run(self) -> BaseException | None:
        """Serve until a stop is asked for or a part fails; gives the failure, if it was one."""
        await self._ending.wait()
        await self.stop()
        return self._failure

    def health(self) -> Mapping[str, object]:
        """What ``/health/ready`` says."""
        offline = self._directory.offline_reason if self._directory is not None else None
        services, metadata = self._services, self._metadata
        phase = None
        if services is not None and self._serving is not None and self._serving.is_recovered:
            phase = services.lifecycle.phase
        is_in = phase is Phase.SERVING or not self.settings.formation.is_broker
        leader = metadata.leader if metadata is not None else None
        return {
            "ready": self.is_serving and is_in and not self._ending.is_set() and not offline,
            "node": int(self.settings.node_id),
            "log_directory": offline or "online",
            "replicas": self._serving.troubles() if self._serving is not None else {},
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

    # -- Stopping ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hand over, answer what is in flight, make everything durable, and say so on the disk."""
        await self._leave()
        self.is_serving = False
        for passed in self._sockets.values():
            passed.close()
        if self._listener is not None:
            await self._listener.stop(is_patient=self._failure is None)
        if self._http is not None:
            await self._http.stop()
        if self._serving is not None:
            await self._serving.stop()
        await self._tasks.close()
        for channel in self._channels:
            channel.close()
        if self._network is not None:
            self._network.close()
        if self._metadata is not None:
            await self._despite_its_disk(self._metadata.stop())
        if self._log_runner is not None:
            # A start that failed before the logs were recovered must not call them clean.
            is_recovered = self._serving is None or self._serving.is_recovered
            is_clean = is_recovered and self._failure is None
            epoch = self._broker_epoch()
            await self._despite_its_disk(self._log_runner.stop(clean=is_clean, broker_epoch=epoch))
        if self._directory is not None:
            self._directory.close()
        log.info("node is down")

    async def _despite_its_disk(self, step: Coroutine[Any, Any, None]) -> None:
        """A disk may fail in the very stop: then the node failed, and the rest is to be closed."""
        try:
            await step
        except OSError as error:
            log.error("disk failed at the stop", error=error_text(error))
            self._failure = self._failure or error

    async def _leave(self) -> None:
        """Let others lead, partitions first and then the quorum, while clients are still served."""
        if self._failure is not None:
            return
        settings = self.settings.controller
        if not self.is_serving or self._services is None:
            return
        if self.settings.formation.is_broker and settings.controlled_shutdown:
            await self._services.lifecycle.leave(settings.controlled_shutdown_timeout_ms / 1000)
        await self._services.metadata.resign()

    def _broker_epoch(self) -> int:
        if self._serving is None or not self._serving.is_recovered or self._services is None:
            return -1
        # A broker that is not registered yet continues its previous registration.
        lifecycle = self._services.lifecycle
        return lifecycle.epoch if lifecycle.epoch >= 0 else lifecycle.identity.previous_epoch
