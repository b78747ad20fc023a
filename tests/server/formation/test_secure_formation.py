"""Nodes that log in to each other form a cluster, and others cannot take part."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from riverrun.client.security import ClientSecurity, SaslLogin
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.mechanisms import SaslMechanism
from riverrun.server.formation.decision import Formed
from riverrun.server.formation.formation import Formation
from riverrun.server.formation.seed_client import SeedClient
from riverrun.server.security.node_security import NodeSecurity
from riverrun.server.settings import NodeSettings
from riverrun.storage.directory import LogDirectory
from tests.processes import free_ports

SECONDS_MAX = 20
USERS = 'user_node="node-secret" user_ann="ann-secret"'
CLOCK, RANDOMNESS = SystemClock(), SystemRandomness()


def settings_of(number: int, first_port: int, folder: Path) -> NodeSettings:
    port = first_port + 2 * (number - 1)
    other = first_port + (1 if number == 2 else 3)
    return NodeSettings.from_texts(
        {
            "node.id": str(number),
            "log.dirs": str(folder / str(number)),
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "sasl.jaas.config": "PlainLoginModule required "
            f'username="node" password="node-secret" {USERS};',
            "authorizer.class.name": "riverrun",
            "super.users": "User:node",
            "seed.nodes": f"127.0.0.1:{other}",
            "seed.retry.ms": "10",
        }
    )


async def form(settings: NodeSettings) -> Formed:
    directory = LogDirectory.open(
        OsFiles(),
        settings.given["log.dirs"],
        node_id=settings.node_id,
        clock=CLOCK,
        randomness=RANDOMNESS,
    )
    security = NodeSecurity(
        settings.given,
        [address.name for address in settings.listening()],
        image=Image,
        clock=CLOCK,
        randomness=RANDOMNESS,
        metrics=Metrics(),
    )
    with contextlib.closing(directory):
        formation = Formation(
            settings,
            directory,
            files=OsFiles(),
            clock=CLOCK,
            randomness=RANDOMNESS,
            security=security,
        )
        return await formation.form()


def client_of(user: str) -> SeedClient:
    login = SaslLogin(mechanism=SaslMechanism.PLAIN, user=user, password=f"{user}-secret")
    security = ClientSecurity(login=login, randomness=RANDOMNESS)
    return SeedClient(NodeId(9), RANDOMNESS.uuid(), 2.0, lambda: security)


def test_only_nodes_that_log_in_take_part(tmp_path: Path) -> None:
    first_port = free_ports(4)

    async def scenario() -> None:
        first = asyncio.ensure_future(form(settings_of(1, first_port, tmp_path)))
        address = ("127.0.0.1", first_port + 1)
        while (found := (await client_of("node").addresses([address]))[0]).report is None:
            assert "refuses the connection" in found.error
        (refused,) = await client_of("ann").addresses([address])
        assert refused.report is None
        assert refused.error == "CLUSTER_AUTHORIZATION_FAILED"
        formed = await asyncio.gather(first, form(settings_of(2, first_port, tmp_path)))
        assert formed[0] == formed[1]
        assert [voter.id for voter in formed[0].voters] == [1, 2]

    asyncio.run(asyncio.wait_for(scenario(), SECONDS_MAX))
