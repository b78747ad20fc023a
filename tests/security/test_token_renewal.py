"""Clients and nodes that get new tokens (OAUTHBEARER) while they work, in real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer as ConfluentProducer

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.client.security import client_security
from riverrun.model.properties import parse_properties
from riverrun.records.record import NewRecord
from tests.cli.commands import Cli
from tests.identity_provider import AUDIENCE, CLIENT, ISSUER, SECRET, IdentityProvider
from tests.processes import executable, free_ports, until
from tests.secure_node import SecureNode

TOKEN_SECONDS = 4
SESSION_MS = 1500
TOKENS = 3
LIMIT_SECONDS = 60


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(life_seconds=TOKEN_SECONDS) as running:
        yield running


def accepting(folder: Path, provider: IdentityProvider) -> dict[str, str]:
    """The settings of a node that accepts tokens of the provider."""
    keys = folder / "jwks.json"
    keys.write_text(provider.keys())
    return {
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "connections.max.reauth.ms": str(SESSION_MS),
    }


def credentials(provider: IdentityProvider) -> dict[str, str]:
    return {
        "sasl.oauthbearer.token.endpoint.url": provider.url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    }


def test_producer_goes_on_when_its_tokens_expire(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        **accepting(tmp_path, provider),
    }
    node = SecureNode(tmp_path / "data", *(f"{name}={text}" for name, text in settings.items()))
    try:
        assert node.run("topics", "create", "orders").returncode == 0
        rights = ("--user", CLIENT, "--role", "producer", "--topic", "orders")
        assert node.run("acls", "add", *rights).returncode == 0
        program = tmp_path / "program.properties"
        lines = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            **credentials(provider),
            "ssl.truststore.location": node.security["ca"],
        }
        program.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        listed = node.run("topics", "list", environment={"RIVERRUN_COMMAND_CONFIG": str(program)})
        assert "orders" in listed.stdout, listed.stderr

        count, seconds = asyncio.run(
            write_until(provider, node.bootstrap, parse_properties(program.read_text()))
        )
        assert seconds > TOKEN_SECONDS
        read = node.run("consume", "orders", "--from-beginning", "--until-end")
        assert len(read.stdout.splitlines()) == count, read.stderr
        assert SECRET not in node.logged
        assert listed.stderr == ""
    finally:
        node.stop()


async def write_until(
    provider: IdentityProvider, bootstrap: str, properties: dict[str, str]
) -> tuple[int, float]:
    """Write with one producer until it has used several tokens: the records, and the seconds."""
    security = client_security(properties)
    before = len(provider.asked)
    began = time.monotonic()
    count = 0
    async with (
        asyncio.timeout(LIMIT_SECONDS),
        ConnectionPool(parse_bootstrap(bootstrap), security=security) as pool,
    ):
        producer = await Producer.open(pool, "orders")
        while len(provider.asked) < before + TOKENS:
            producer.add(NewRecord(str(count).encode()))
            await producer.flush()
            count += 1
            await asyncio.sleep(0.01)
    return count, time.monotonic() - began


def test_follower_goes_on_when_its_tokens_expire(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    port = free_ports(20)
    ports = [port, port + 10]
    processes = [start(tmp_path, provider, number, ports) for number in (1, 2)]
    try:
        for number in (1, 2):
            until(partial(is_up, tmp_path / f"{number}.log"), seconds=60, what=f"node {number}")
        bootstrap = f"127.0.0.1:{ports[0]}"
        cli = Cli(bootstrap)
        cli.run("topics", "create", "orders", "--partitions", "4", "--replication-factor", "2")
        writer = ConfluentProducer({"bootstrap.servers": bootstrap, "message.timeout.ms": 20_000})
        errors: list[object] = []
        before = len(provider.asked)

        def has_renewed() -> bool:
            writer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
            assert writer.flush(20) == 0
            return len(provider.asked) >= before + 2 * TOKENS

        until(has_renewed, seconds=LIMIT_SECONDS, what="both nodes get several tokens")
        assert not any(errors)
        status = json.loads(cli.run("cluster", "status", "--json"))
        assert status["under_replicated_partitions"] == [], status
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait(30) for process in processes]
    logs = [(tmp_path / f"{number}.log").read_text() for number in (1, 2)]
    assert codes == [0, 0], logs
    assert all(SECRET not in text for text in logs)


def is_up(log: Path) -> bool:
    return "node is up" in log.read_text()


def start(
    folder: Path, provider: IdentityProvider, number: int, ports: list[int]
) -> subprocess.Popen[bytes]:
    """A node whose connections to other brokers log in with tokens."""
    port = ports[number - 1]
    settings = {
        "node.id": str(number),
        "log.dirs": str(folder / str(number)),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{port + 1},"
        f"CONTROLLER://127.0.0.1:{port + 2}",
        "http.listener": "",
        "seed.nodes": ",".join(f"127.0.0.1:{one}" for one in ports),
        "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "min.insync.replicas": "2",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "super.users": f"User:{CLIENT}",
        **accepting(folder, provider),
        **{f"listener.name.internal.{name}": text for name, text in credentials(provider).items()},
    }
    path = folder / f"{number}.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    with (folder / f"{number}.log").open("wb") as log:
        return subprocess.Popen(
            [executable(), "start", "--config", str(path)], stdout=log, stderr=log
        )
