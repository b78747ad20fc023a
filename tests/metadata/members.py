"""Members of a metadata quorum in a simulated world: the unchanged log, core and handlers, with
simulated sockets, disks and clocks. Invariants are checked after every event: one leader per
epoch, equal images at equal offsets, and nothing published is ever undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.loading import SnapshotFolder
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.metadata.quorum import Voter
from riverrun.metadata.records import ConfigRecord, Record
from riverrun.metadata.settings import MetadataSettings
from riverrun.metadata.snapshot import BOOTSTRAP, snapshot_batches
from riverrun.model.errors import KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.raft.settings import QuorumSettings
from riverrun.server.dispatch.context import CONTROLLER
from riverrun.server.dispatch.response_cache import ResponseCache
from riverrun.server.dispatch.router import Router
from riverrun.server.network.listener import Listener
from riverrun.server.network.settings import NetworkSettings
from riverrun.server.quorum.network import QuorumNetwork
from riverrun.server.requests import quorum_fetch
from riverrun.simulation.world import Environment, World
from riverrun.wire.apis import CONTROLLER_ROUTES, ApiKey
from tests.metadata.opened import open_log
from tests.server.access import OPEN_ACCESS

FOLDER = "/data/__cluster_metadata-0"
PORT = 9093
CLUSTER = "cluster-of-tests"


def setting(value: int) -> list[Record]:
    """A change that is easy to recognise."""
    return [ConfigRecord(resource_type=4, resource_name="", name="n", value=str(value))]


def value_of(image: Image) -> int:
    values = {name: text for settings in image.configs.values() for name, text in settings.items()}
    return int(values.get("n", "-1"))


class Member:
    """One node over all its incarnations."""

    def __init__(self, quorum: Quorum, number: int, **options: Any) -> None:
        self.quorum = quorum
        self.id = NodeId(number)
        self.name = f"node{number}"
        self.directory_id = UUID(int=1000 + number)
        self.port = PORT
        self.renewals = 0
        self.options = options
        self.log: MetadataLog | None = None
        self.opened = 0
        self.deltas: list[Delta] = []
        self.outcomes: list[Image | BaseException] = []
        self.failures: list[BaseException] = []
        self.caught_up = False
        self.first_known: list[int] = []
        """The value that each incarnation knew when it reported itself caught up."""

    @property
    def voter(self) -> Voter:
        endpoints = {CONTROLLER: (self.name, self.port)}
        return Voter(id=self.id, directory_id=self.directory_id, endpoints=endpoints)

    @property
    def running(self) -> MetadataLog:
        assert self.log is not None, f"{self.name} is not up"
        return self.log

    def start(self) -> None:
        self.log = None
        self.quorum.world.start(self.name, self._main)

    def kill(self) -> None:
        self.quorum.world.kill(self.name)
        self.log = None

    def power_off(self) -> None:
        self.quorum.world.power_off(self.name)
        self.log = None

    def append(self, records: Sequence[Record]) -> None:
        """The result is stored in ``outcomes``."""
        self.call(lambda: self._append(records))

    async def _append(self, records: Sequence[Record]) -> None:
        try:
            self.outcomes.append(await self.running.append(records))
        except (OSError, KafkaError) as error:
            self.outcomes.append(error)

    def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run something inside the node."""
        process = self.quorum.world.host(self.name).process
        assert process is not None, f"{self.name} is not up"
        process.arrive(lambda: process.create_task(work()))

    def replace_disk(self) -> None:
        """Its seeds know the cluster that it returns to."""
        self.directory_id = UUID(int=self.directory_id.int + 5000)
        peers = tuple((one.name, PORT) for one in self.quorum.members if one is not self)
        self.options = {**self.options, "forms_cluster": False, "bootstrap": peers}

    def _renew(self) -> UUID:
        self.renewals += 1
        self.directory_id = UUID(int=2000 + 100 * self.renewals + self.id)
        return self.directory_id

    async def _main(self, environment: Environment) -> None:
        try:
            await self._live(environment)
        except OSError as error:
            self.failures.append(error)  # as a real node would, it stops

    async def _live(self, environment: Environment) -> None:
        files, clock = environment.files, environment.clock
        settings: MetadataSettings = self.options.get("settings", MetadataSettings())
        if not files.exists(FOLDER):
            files.make_directory(FOLDER)
            files.sync_directory("/")
            files.sync_directory("/data")
            if self.options.get("forms_cluster", True):
                _form_cluster(files, self.quorum.first_voters())
        quorum_settings = QuorumSettings()
        network = QuorumNetwork(CLUSTER, quorum_settings, name=self.name)
        log = await MetadataLog.open(
            open_log(files, FOLDER, settings, clock),
            files=files,
            node_id=self.id,
            directory_id=self.directory_id,
            controller_endpoints=self.voter.endpoints,
            clock=clock,
            settings=settings,
            quorum_settings=quorum_settings,
            randomness=environment.randomness,
            network=network,
            is_controller=self.options.get("is_controller", True),
            joins=self.options.get("joins", False),
            bootstrap=self.options.get("bootstrap", ()),
            renew_directory=self._renew,
        )
        log.subscribe(self._published)
        log.on_leadership(self._led)
        self.quorum.saw(self, log.current)
        await self._listen(log, environment)
        self.log = log
        self.opened += 1
        run = asyncio.ensure_future(log.run())
        caught_up = asyncio.ensure_future(log.caught_up())
        caught_up.add_done_callback(self._note_caught_up)
        await run

    def _note_caught_up(self, done: asyncio.Future[None]) -> None:
        self.caught_up = not done.cancelled() and done.exception() is None
        if self.caught_up:
            self.first_known.append(value_of(self.running.current))

    async def _listen(self, log: MetadataLog, environment: Environment) -> None:
        services = SimpleNamespace(
            metadata=log,
            logs=SimpleNamespace(cluster_id=CLUSTER),
            response_cache=ResponseCache(),
            access=OPEN_ACCESS,
        )
        metrics = Metrics()
        router = Router(
            services,
            metrics=metrics,
            clock=environment.clock,
            apis=CONTROLLER_ROUTES,
            modules={ApiKey.FETCH: quorum_fetch},
            on_bug=self.failures.append,
        )
        listener = Listener(router, NetworkSettings(), clock=environment.clock, metrics=metrics)
        await listener.start(CONTROLLER, self.name, self.port)

    def _published(self, delta: Delta, image: Image) -> None:
        self.deltas.append(delta)
        self.quorum.saw(self, image)

    def _led(self, is_active: bool, epoch: LeaderEpoch) -> None:
        self.quorum.led(self, is_active, epoch)


def _form_cluster(files: Files, voters: Sequence[Voter]) -> None:
    """The files that formation leaves on every disk."""
    folder = SnapshotFolder(files, FOLDER)
    file = folder.begin(BOOTSTRAP)
    data = b"".join(snapshot_batches(Image(), voters, 0))
    file.write_at(0, data)
    folder.finish(BOOTSTRAP, file)


class Quorum:
    """All members, and their common invariants."""

    def __init__(self, world: World, size: int = 3, **options: Any) -> None:
        self.world = world
        self.members = [Member(self, number, **options) for number in range(1, size + 1)]
        self._first_voters = tuple(member.voter for member in self.members)
        self.images: dict[int, Image] = {}
        self.leaders: dict[int, Member] = {}
        self.published: dict[Member, int] = {}

    def first_voters(self) -> tuple[Voter, ...]:
        return self._first_voters

    def member(self, number: int, **options: Any) -> Member:
        """A member that was not part of the formation."""
        bootstrap = tuple((member.name, PORT) for member in self.members)
        member = Member(self, number, forms_cluster=False, bootstrap=bootstrap, **options)
        self.members.append(member)
        return member

    def start(self) -> None:
        for member in self.members:
            member.start()

    def saw(self, member: Member, image: Image) -> None:
        if image.offset < 0:
            return
        known = self.images.setdefault(image.offset, image)
        assert known == image, f"{member.name} holds another image at {image.offset}"

    def led(self, member: Member, is_active: bool, epoch: LeaderEpoch) -> None:
        if is_active:
            known = self.leaders.setdefault(epoch, member)
            assert known is member, f"{known.name} and {member.name} lead epoch {epoch}"

    def active(self) -> Member | None:
        found = [m for m in self.members if m.log is not None and m.log.is_active]
        return max(found, key=lambda member: member.running.epoch, default=None)

    def wait_for_leader(self, seconds: float = 10.0, but: Member | None = None) -> Member:
        def is_there() -> bool:
            return (active := self.active()) is not None and active is not but

        assert self.world.run_until(is_there, seconds), "there is no leader"
        active = self.active()
        assert active is not None
        return active

    def commit(self, value: int, seconds: float = 10.0) -> Member:
        """Change something, and wait until it is committed."""
        leader = self.wait_for_leader(seconds)
        before = len(leader.outcomes)
        leader.append(setting(value))
        assert self.world.run_until(lambda: len(leader.outcomes) > before, seconds), "no outcome"
        outcome = leader.outcomes[-1]
        assert isinstance(outcome, Image), f"{leader.name}: {outcome!r}"
        return leader

    def wait_for(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        assert self.world.run_until(condition, seconds), "it did not come to pass"

    def wait_for_value(self, value: int, seconds: float = 10.0) -> None:
        """Every running member has it."""
        self.wait_for(
            lambda: all(
                value_of(member.log.current) == value
                for member in self.members
                if member.log is not None
            ),
            seconds,
        )
