"""A simulated cluster: machines that each run the unmodified node, supervised and observed.

Clients, faults and checks are added by the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from signal import SIGTERM
from uuid import UUID

from riverrun.client.security import ClientSecurity, client_security
from riverrun.metadata.image import PartitionImage
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.metadata.quorum import MetadataError
from riverrun.model.errors import KafkaError
from riverrun.model.ids import PartitionIndex, TopicName
from riverrun.ports.files import Files
from riverrun.raft.types import Voter
from riverrun.server.controller_link.lifecycle import RegistrationRefused
from riverrun.server.formation.decision import FormationError, FormationStopped
from riverrun.server.node import Node
from riverrun.server.settings import NodeSettings
from riverrun.simulation.checks.metadata_history import MetadataHistory
from riverrun.simulation.checks.plan_checks import running_plan
from riverrun.simulation.failures import NodeFailure
from riverrun.simulation.loop import NodeLoop
from riverrun.simulation.supervisor import ProcessSupervisor
from riverrun.simulation.world import Environment, World
from riverrun.storage.identity import DirectoryError

CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
REPLICAS_MAX = 3
REFUSALS = (
    DirectoryError,
    MetadataError,
    FormationError,
    FormationStopped,
    RegistrationRefused,
)


def node_name(number: int) -> str:
    return f"node-{number}"


def data_directory(name: str) -> str:
    return f"/data/{name}"


def node_settings(
    number: int,
    *,
    nodes: int,
    controllers: int,
    texts: Mapping[str, str],
    listener: str = "PLAINTEXT",
    segment_bytes: int | None = None,
) -> NodeSettings:
    """The settings of one node. The first ``controllers`` nodes are controllers and brokers."""
    name = node_name(number)
    replicas = min(nodes, REPLICAS_MAX)
    given = {
        "node.id": str(number),
        "log.dirs": data_directory(name),
        "listeners": f"{listener}://{name}:{CLIENT_PORT},CONTROLLER://{name}:{CONTROLLER_PORT}",
        "http.listener": "",
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "min.insync.replicas": str(min(replicas, 2)),
        "reassignment.grace.ms": "2000",  # Logs are kept and deleted within a run.
        "metrics.history.enable": "false",  # It would ask leaders for offsets, and change all runs.
    }
    if nodes > 1:
        seeds = (node_name(other) for other in range(1, controllers + 1))
        given["seed.nodes"] = ",".join(f"{seed}:{CLIENT_PORT}" for seed in seeds)
        given["process.roles"] = "broker,controller" if number <= controllers else "broker"
    settings = NodeSettings.from_texts({**given, **texts})
    if segment_bytes is not None:
        # Smaller than the setting allows: segments roll within seconds.
        log = dataclasses.replace(settings.log, segment_bytes=segment_bytes)
        settings = dataclasses.replace(settings, log=log)
    return settings


class SimulatedCluster:
    """Nodes named ``node-1``, ``node-2``, ...; ``brokers`` holds the running ones."""

    def __init__(
        self,
        world: World,
        settings: Sequence[NodeSettings],
        *,
        files: Callable[[Files], Files] = lambda files: files,
        login: Mapping[str, str] | None = None,
    ) -> None:
        """``login``: client settings of the administrator, if the cluster requires a login."""
        self._world = world
        self.login = login or {}
        self._files = files
        self.supervisor = ProcessSupervisor(world)
        self.metadata = MetadataHistory(world)
        self._brokers: dict[str, tuple[NodeLoop, Node]] = {}
        self._ready: dict[str, NodeLoop] = {}
        self.settings = {node_name(int(one.node_id)): one for one in settings}
        self.removed_voters: dict[str, None] = {}
        """Controllers that the administrator removed from the voters, or tried to."""
        for name in self.settings:
            self.supervisor.add(name, partial(self._run, name))
        world.tolerates_failures_on = lambda host: host not in self.settings
        world.after_iteration = self.metadata.check

    @property
    def names(self) -> list[str]:
        return list(self.settings)

    @property
    def controllers(self) -> list[str]:
        return [name for name, one in self.settings.items() if one.formation.is_controller]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{name}:{CLIENT_PORT}" for name in self.settings)

    def security(self, environment: Environment) -> ClientSecurity | None:
        """How the administrator's connections log in."""
        return client_security(self.login, environment.randomness)

    @property
    def brokers(self) -> dict[str, Node]:
        """Nodes whose process is running."""
        hosts = self._world.hosts
        return {
            name: broker
            for name, (process, broker) in self._brokers.items()
            if hosts[name].process is process
        }

    @property
    def ready(self) -> list[str]:
        """Nodes that serve clients."""
        hosts = self._world.hosts
        return [name for name, process in self._ready.items() if hosts[name].process is process]

    @property
    def leader(self) -> str | None:
        """The active controller of the newest epoch, if it is up."""
        active = [(log.epoch, name) for name, log in self.logs() if log.is_active]
        return max(active)[1] if active else None

    def logs(self) -> list[tuple[str, MetadataLog]]:
        """The metadata logs of running nodes that have opened one."""
        found = ((name, broker.metadata) for name, broker in self.brokers.items())
        return [(name, log) for name, log in found if log is not None]

    def voters(self) -> tuple[Voter, ...]:
        """The voters according to the node with the highest high watermark."""
        logs = [log for _, log in self.logs()]
        return max(logs, key=lambda log: log.high_watermark).voters if logs else ()

    def directory_id(self, name: str) -> UUID | None:
        broker = self.brokers.get(name)
        directory = None if broker is None else broker._directory
        return None if directory is None else directory.directory_id

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        return self.metadata.latest.partition(TopicName(topic), PartitionIndex(index))

    def unsettled_reason(self) -> str | None:
        """Why the cluster is not settled; None if it is."""
        latest = self.metadata.latest
        logs, ready = dict(self.logs()), self.ready
        for name, settings in self.settings.items():
            registered = latest.brokers.get(settings.node_id)
            if name not in ready or name not in logs:
                return f"{name} is not up"
            if registered is None or registered.is_fenced:
                return f"{name} is fenced"
            if logs[name].current.offset != latest.offset:
                return f"{name} is at metadata offset {logs[name].current.offset}, not at the end"
        unfinished = running_plan(latest)
        if unfinished is not None:
            return unfinished
        voting = {node_name(int(voter.id)): voter.directory_id for voter in self.voters()}
        for name in self.controllers:
            if name not in self.removed_voters and voting.get(name) != self.directory_id(name):
                return f"{name} does not vote"
        for topic in latest.topics_by_name.values():
            for index, one in enumerate(topic.partitions):
                if one.adding or one.removing:
                    return f"{topic.name}-{index} is reassigned: {one}"
                if sorted(one.isr) != sorted(one.replicas) or one.leader not in one.isr:
                    return f"{topic.name}-{index} of {one.replicas} has isr {one.isr}"
        return None

    async def _run(self, name: str, environment: Environment) -> None:
        """Run a node as ``server.main`` does, with simulated ports."""
        world = self._world
        broker = Node(
            self.settings[name],
            files=self._files(environment.files),
            clock=environment.clock,
            randomness=environment.randomness,
            boot_id=environment.boot_id,
        )
        self._brokers[name] = (environment.loop, broker)
        self.metadata.began(environment.loop, lambda: broker.metadata)
        environment.loop.add_signal_handler(SIGTERM, broker.request_stop, "SIGTERM")
        try:
            is_up = await broker.start()
        except (*REFUSALS, KafkaError, OSError) as error:
            world.trace(f"{name}: cannot start: {error}")
            await broker.stop()
            return
        if is_up:
            world.trace(f"{name}: ready")
            self._ready[name] = environment.loop
        failure = await broker.run()
        self._ready.pop(name, None)
        if failure is not None:
            world.note(f"{name}: stopped by {failure!r}")
            if not isinstance(failure, OSError):
                bug = NodeFailure(f"{name}: stopped by its own bug: {failure!r}")
                bug.__cause__ = failure
                world.fail(bug)
