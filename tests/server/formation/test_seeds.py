"""Seeds on real sockets: one DNS name for all nodes, like a Kubernetes headless service."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riverrun.model.ids import NodeId
from riverrun.model.settings import SettingError
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.formation.decision import FormationError, FormationStopped, Formed
from riverrun.server.formation.formation import Formation
from riverrun.server.formation.seed_client import SeedClient
from riverrun.server.formation.settings import parse_seed
from riverrun.server.settings import NodeSettings
from riverrun.storage.directory import LogDirectory
from tests.processes import free_ports

SECONDS_MAX = 30.0
NAME = "riverrun.default.svc"


class Service:
    """Nodes on 127.0.0.1, 127.0.0.2, ... with the same port and one DNS name."""

    def __init__(self, folder: Path, count: int, **settings: str) -> None:
        self.port = free_ports(2)
        self.folder = folder
        self.count = count
        self.settings = {name.replace("_", "."): text for name, text in settings.items()}
        self.stopping = asyncio.Event()

    def resolve(self) -> None:
        """Replace the DNS resolver of this event loop."""
        loop: Any = asyncio.get_running_loop()
        ask: Callable[..., Any] = loop.getaddrinfo

        async def getaddrinfo(host: str, port: int, **options: Any) -> Any:
            if host != NAME:
                return await ask(host, port, **options)
            hosts = [f"127.0.0.{number}" for number in range(1, self.count + 1)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port)) for h in hosts]

        loop.getaddrinfo = getaddrinfo

    async def form(self, number: int) -> Formed:
        host = f"127.0.0.{number}"
        path = self.folder / str(number)
        texts = {
            "node.id": str(number),
            "log.dirs": str(path),
            "listeners": f"PLAINTEXT://{host}:{self.port},CONTROLLER://{host}:{self.port + 1}",
            "seed.nodes": f"{NAME}:{self.port}",
            "seed.retry.ms": "10",
        }
        settings = NodeSettings.from_texts(texts | self.settings)
        clock, randomness = SystemClock(), SystemRandomness()
        directory = LogDirectory.open(
            OsFiles(), str(path), node_id=NodeId(number), clock=clock, randomness=randomness
        )
        with contextlib.closing(directory):
            formation = Formation(
                settings,
                directory,
                files=OsFiles(),
                clock=clock,
                randomness=randomness,
                stopping=self.stopping,
            )
            return await formation.form()


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, SECONDS_MAX))


def test_nodes_behind_one_dns_name_found_one_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = Service(tmp_path, 3, bootstrap_expect="3")
        service.resolve()
        formed = await asyncio.gather(*(service.form(number) for number in (1, 2, 3)))
        assert formed[0] == formed[1] == formed[2]
        assert [voter.id for voter in formed[0].voters] == [1, 2, 3]

    run(scenario())


def test_dns_name_of_several_nodes_requires_bootstrap_expect(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = Service(tmp_path, 3)
        service.resolve()
        nodes = [asyncio.ensure_future(service.form(number)) for number in (1, 2, 3)]
        done, _ = await asyncio.wait(nodes, return_when=asyncio.FIRST_EXCEPTION)
        service.stopping.set()
        await asyncio.wait(nodes)
        first = next(iter(done)).exception()
        assert isinstance(first, FormationError)
        assert "bootstrap.expect" in str(first)

    run(scenario())


def test_formation_stops_while_it_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = Service(tmp_path, 3, bootstrap_expect="3")
        service.resolve()
        waiting = asyncio.ensure_future(service.form(1))
        client = SeedClient(NodeId(9), SystemRandomness().uuid(), 1.0)
        address = ("127.0.0.1", service.port)
        while (result := (await client.addresses([address]))[0]).report is None:
            assert "refuses" in result.error
        assert result.report.named is None
        service.stopping.set()
        with pytest.raises(FormationStopped):
            await waiting

    run(scenario())


def test_node_without_metadata_gets_a_new_directory_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = Service(tmp_path, 3, bootstrap_expect="3")
        service.resolve()
        await asyncio.gather(*(service.form(number) for number in (1, 2, 3)))
        before = (tmp_path / "1" / "meta.properties").read_text()
        await service.form(1)
        assert (tmp_path / "1" / "meta.properties").read_text() == before, "nothing was lost"
        shutil.rmtree(tmp_path / "1" / "__cluster_metadata-0")
        service.stopping.set()
        with pytest.raises(FormationStopped):
            await service.form(1)
        after = (tmp_path / "1" / "meta.properties").read_text()
        assert _line(after, "cluster.id") == _line(before, "cluster.id")
        assert _line(after, "directory.id") != _line(before, "directory.id")

    run(scenario())


def _line(text: str, name: str) -> str:
    [found] = [line for line in text.splitlines() if line.startswith(f"{name}=")]
    return found


@pytest.mark.parametrize("text", ["node1", "node1:", ":9092", "node1:99999"])
def test_invalid_seed_is_rejected(text: str) -> None:
    with pytest.raises(SettingError, match="a seed looks like"):
        parse_seed(text)


def test_seed_may_have_brackets_and_spaces() -> None:
    assert parse_seed("[::1]:9092") == ("::1", 9092)
    assert parse_seed(" node1:9092 ") == ("node1", 9092)
