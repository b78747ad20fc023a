"""One node: builds every part, connects them, and takes them down again.

The order of the start is the order of trust: the directory says who we are, the metadata log says
what exists, recovery says what survived; only then is the node registered and the listener opened.
A part that cannot go on (a failed sync, a broken invariant) stops the node: a stopped broker is
safe, a wrong one is not.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import structlog

from riverrun.cluster.configs import Configs
from riverrun.cluster.controller import Controller
from riverrun.cluster.registration import Registration
from riverrun.cluster.runner import ControllerRunner
from riverrun.coordinator.runner import GroupCoordinators
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Endpoint, Image
from riverrun.metadata.runner import MetadataLog
from riverrun.model.ids import TopicName
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.replication.replicas import Replicas
from riverrun.replication.runner import Flusher
from riverrun.server.fetch_sessions import FetchSessions
from riverrun.server.http import HttpServer
from riverrun.server.listener import Listener
from riverrun.server.node_metrics import declare_metrics
from riverrun.server.offsets_topic import TOPIC as OFFSETS_TOPIC
from riverrun.server.offsets_topic import OffsetsTopic
from riverrun.server.outgoing import Outgoing
from riverrun.server.parts import Parts
from riverrun.server.router import Router
from riverrun.server.settings import NodeSettings, declared_settings
from riverrun.storage.directory import LogDirectory
from riverrun.storage.runner import LogRunner

log = structlog.get_logger("riverrun")

DIRECTORY_CHECK_SECONDS = 0.25


class Broker:
    """A node from start to stop. Everything that the world gives it comes in here."""

    def __init__(
        self, settings: NodeSettings, *, files: Files, clock: Clock, randomness: Randomness
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._ending = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_serving = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._directory: LogDirectory | None = None
        self._log_runner: LogRunner | None = None
        self._metadata: MetadataLog | None = None
        self._flusher: Flusher | None = None
        self._offsets: OffsetsTopic | None = None
        self._listener: Listener | None = None
        self._http: HttpServer | None = None
        self._parts: Parts | None = None

    # -- Starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come up; when this returns, clients are served."""
        began = self._clock.monotonic()
        parts = await self._build()
        await self._register(parts)
        self._listener = Listener(
            Router(parts, metrics=self.metrics, clock=self._clock, on_bug=self._handler_failed),
            self.settings.network,
            clock=self._clock,
            metrics=self.metrics,
            outgoing=parts.outgoing,
        )
        for address in self.settings.client_addresses():
            await self._listener.start(address.name, address.host, address.port)
        await self._start_http()
        self._is_serving = True
        log.info(
            "node is up",
            cluster=parts.logs.cluster_id,
            partitions=sum(1 for _ in parts.replicas),
            clients=", ".join(f"{a.host}:{a.port}" for a in self.settings.advertised()),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    async def _build(self) -> Parts:
        settings = self.settings
        directory = LogDirectory.open(
            self._files,
            settings.data_directory,
            node_id=settings.node_id,
            clock=self._clock,
            randomness=self._randomness,
            settings=settings.directory,
        )
        self._directory = directory
        log_runner = self._log_runner = LogRunner(
            directory, clock=self._clock, metrics=self.metrics, cleaner=settings.cleaner
        )
        metadata = self._metadata = await self._open_metadata(directory)
        configs = Configs(
            declared_settings(), given=settings.given, node_id=settings.node_id, log=settings.log
        )
        await log_runner.recover(lambda topic: configs.log_settings(metadata.current, topic))
        flusher = self._flusher = Flusher(log_runner)
        replicas = Replicas(directory, settings.node_id, configs.log_settings, flusher.request)
        controller = ControllerRunner(metadata, Controller(configs, self._randomness))
        groups = GroupCoordinators(
            settings.group,
            clock=self._clock,
            randomness=self._randomness,
            metrics=self.metrics,
            partitions=self._offsets_partitions,
            failed=self._bug,
        )
        self._offsets = OffsetsTopic(groups, log_runner, self._clock)
        parts = self._parts = Parts(
            settings=settings,
            clock=self._clock,
            randomness=self._randomness,
            metrics=self.metrics,
            metadata=metadata,
            configs=configs,
            controller=controller,
            replicas=replicas,
            groups=groups,
            logs=directory,
            log_runner=log_runner,
            fetch_sessions=FetchSessions(settings.replication.fetch_sessions_max, self._randomness),
            outgoing=Outgoing(settings.network.unsent_bytes_max),
        )
        declare_metrics(self.metrics, parts)
        replicas.apply_all(metadata.current)
        metadata.prepare_with(self._prepare)
        metadata.subscribe(self._published)
        self._own("metadata log", metadata.run())
        self._own("log directory", log_runner.run())
        self._own("data directory", _watch_directory(parts))
        return parts

    async def _open_metadata(self, directory: LogDirectory) -> MetadataLog:
        settings = self.settings
        controller = settings.controller_address()
        endpoints = {controller.name: (controller.host, controller.port)} if controller else {}
        return await MetadataLog.open(
            directory.open_metadata(settings.metadata),
            files=self._files,
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            controller_endpoints=endpoints,
            clock=self._clock,
            settings=settings.metadata,
            cluster_settings={},
        )

    async def _register(self, parts: Parts) -> None:
        """Say that we are here; the leader epochs of all that we lead rise with it."""
        settings = self.settings
        if parts.logs.cluster_id is None:
            parts.logs.adopt_cluster(_cluster_id(self._randomness))
        await parts.controller.activate()
        await parts.controller.register_broker(
            Registration(
                node=settings.node_id,
                incarnation=self._randomness.uuid(),
                endpoints={
                    a.name: Endpoint(host=a.host, port=a.port) for a in settings.advertised()
                },
                rack=settings.identity.rack or None,
                directories=(parts.logs.directory_id,),
            )
        )
        assert self._offsets is not None, "registered before the parts were built"
        self._offsets.follow(parts.replicas)
        parts.groups.start()

    def _offsets_partitions(self) -> int:
        """How many partitions the offsets topic has, or would have."""
        assert self._metadata is not None, "groups are asked for before there is metadata"
        topic = self._metadata.current.topics_by_name.get(TopicName(OFFSETS_TOPIC))
        return len(topic.partitions) if topic else self.settings.group.offsets_topic_partitions

    async def _start_http(self) -> None:
        address = self.settings.identity.http_listener
        if address:
            host, _, port = address.rpartition(":")
            self._http = HttpServer(self.metrics, self.health)
            await self._http.start(host, int(port))

    # -- Running ----------------------------------------------------------------------------------

    def _own(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a part beside the others; if it ends with an error, so does the node."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._part_ended)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("node must stop", part=task.get_name(), reason=_reason(error))
            self._failure = self._failure or error
            self._ending.set()

    def _handler_failed(self, error: BaseException) -> None:
        """A handler's bug costs the connection; one that may have left state behind, the node.

        An assertion in append, replay or a coordinator is of the second kind.
        """
        trace = "".join(traceback.format_exception(error))
        log.error("a request failed", reason=_reason(error), trace=trace)
        if isinstance(error, AssertionError) and _changes_state(error):
            self._bug(error)

    def _bug(self, error: BaseException) -> None:
        log.error("node must stop", reason=_reason(error))
        self._failure = self._failure or error
        self._ending.set()

    def _prepare(self, delta: Delta, image: Image) -> Iterator[None]:
        """What a new image takes long for, in steps; nobody sees the image yet."""
        parts = self._parts
        assert parts is not None, "an image was prepared before the parts were built"
        for topic_id in delta.changed_topics:
            changed = image.topics_by_id.get(topic_id)
            if changed is not None:
                yield from parts.replicas.prepare(image, changed)

    def _published(self, delta: Delta, image: Image) -> None:
        """A new image: replicas first, then whoever builds on them."""
        parts = self._parts
        assert parts is not None, "an image was published before the parts were built"
        for topic in delta.deleted_topics.values():
            parts.replicas.remove_topic(topic.name)
        for topic_id in delta.changed_topics:
            changed = image.topics_by_id.get(topic_id)
            if changed is not None:
                parts.replicas.apply_topic(image, changed)
        self._configure(parts, delta, image)
        if delta.deleted_topics:
            parts.groups.topics_deleted([topic.name for topic in delta.deleted_topics.values()])
        if self._offsets is not None and (delta.changed_topics or delta.deleted_topics):
            self._offsets.follow(parts.replicas)

    def _configure(self, parts: Parts, delta: Delta, image: Image) -> None:
        kinds = {kind for kind, _ in delta.changed_configs}
        if ConfigType.BROKER in kinds:
            parts.replicas.configure(image)
            if self._listener is not None:
                self._listener.configure(parts.configs.effective(image, self.settings.network))
        elif ConfigType.TOPIC in kinds:
            parts.replicas.configure(
                image,
                {name: None for kind, name in delta.changed_configs if kind is ConfigType.TOPIC},
            )

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
        return {
            "ready": self._is_serving and not self._ending.is_set() and not offline,
            "node": int(self.settings.node_id),
            "log_directory": offline or "online",
            "failure": _reason(self._failure) if self._failure is not None else None,
        }

    # -- Stopping ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer what is in flight, make everything durable, and say so on the disk."""
        self._is_serving = False
        if self._listener is not None:
            await self._listener.stop()
        if self._http is not None:
            await self._http.stop()
        if self._parts is not None:
            await self._parts.groups.stop()
        if self._flusher is not None:
            await self._flusher.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._metadata is not None:
            await self._metadata.stop()
        if self._log_runner is not None:
            # A start that failed before the logs were recovered must not call them clean.
            is_recovered = self._parts is not None
            await self._log_runner.stop(clean=is_recovered and self._failure is None)
        if self._directory is not None:
            self._directory.close()
        log.info("node is down")


async def _watch_directory(parts: Parts) -> None:
    """Make logs that found no room before. Ends with an error when the disk has failed: nobody
    knows what it holds now, and only a new start, which reads it again, can tell.
    """
    while not parts.logs.is_offline:
        await asyncio.sleep(DIRECTORY_CHECK_SECONDS)
        if parts.replicas.unopened:
            parts.replicas.open_missing(parts.metadata.current)
    raise OSError(parts.logs.offline_reason)


def _cluster_id(randomness: Randomness) -> str:
    """Kafka's form: a random UUID in URL-safe base 64, without the padding."""
    import base64

    return base64.urlsafe_b64encode(randomness.uuid().bytes).decode().rstrip("=")


STATEFUL_PACKAGES = ("storage", "metadata", "replication", "coordinator", "cluster")


def _changes_state(error: AssertionError) -> bool:
    """Whether the assertion that failed guards state, by the package that it stands in."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return any(f"/riverrun/{package}/" in last for package in STATEFUL_PACKAGES)


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
