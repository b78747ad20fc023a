"""Clients log in again on the same connection while they work (KIP-368), and nothing fails."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.security import client_security
from riverrun.model.errors import KafkaError as OwnError
from riverrun.model.properties import parse_properties
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

SESSION_MS = 12_000
"""Clients renew a login near the end of a session, ours when 85 % are over. A tenth of a session is
longer than a stall of a second, which a busy machine may have."""
LOGINS = 2
"""Further logins of each connection that a test waits for."""
WORKERS = 8
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    setting = f"listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms={SESSION_MS}"
    node = SecureNode(tmp_path_factory.mktemp("renewed") / "data", setting)
    assert node.run("topics", "create", "load").returncode == 0
    yield node
    assert node.stop() == 0


def measured(secure: SecureNode, name: str) -> float:
    url = f"http://{secure.told['nodes'][0]['http']}/metrics"
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def logins(secure: SecureNode) -> float:
    name = 'riverrun_logins_total{mechanism="SCRAM-SHA-512",result="succeeded"}'
    return measured(secure, name)


def expired(secure: SecureNode) -> float:
    return measured(secure, 'riverrun_connections_refused_total{reason="session_expired"}')


class Patience:
    """Whether a client has logged in again often enough."""

    def __init__(self, secure: SecureNode, connections: int) -> None:
        self._secure = secure
        self._wanted = logins(secure) + connections * (1 + LOGINS)
        self._start = time.monotonic()

    def is_over(self) -> bool:
        seconds = time.monotonic() - self._start
        assert seconds < SECONDS_MAX, "the client does not log in again"
        is_late = seconds > (1 + LOGINS) * SESSION_MS / 1000
        return is_late and logins(self._secure) >= self._wanted


def test_librdkafka_logs_in_again_while_it_writes_and_reads(secure: SecureNode) -> None:
    errors: list[KafkaError] = []
    delivered: list[Message] = []

    def done(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered.append(message)
        else:
            errors.append(error)

    known = {**secure.admin, "error_cb": errors.append}
    producer = Producer({**known, "acks": "all", "linger.ms": 1})
    consumer = Consumer({**known, "group.id": "renewed", "auto.offset.reset": "earliest"})
    consumer.subscribe(["load"])
    read = sent = 0
    before, patience = expired(secure), Patience(secure, connections=2)
    while not patience.is_over():
        for _ in range(100):
            producer.produce("load", b"x" * 100, on_delivery=done)
            sent += 1
        producer.poll(0.01)
        for message in consumer.consume(200, timeout=0.05):
            assert message.error() is None, message.error()
            read += 1
    assert producer.flush(SECONDS_MAX) == 0
    while read < sent:
        found = consumer.consume(500, timeout=SECONDS_MAX)
        assert found, f"{read} of {sent} records were read"
        read += len(found)
    consumer.close()
    assert errors == []
    assert (len(delivered), read) == (sent, sent)
    assert expired(secure) == before


def test_our_client_logs_in_again_between_concurrent_requests(secure: SecureNode) -> None:
    texts = parse_properties(Path(secure.security["properties"]).read_text())
    failures: list[OwnError | OSError] = []
    stopping = threading.Event()

    async def work(pool: ConnectionPool) -> int:
        count = 0
        topic = MetadataRequestTopic(name="load")
        while not stopping.is_set():
            await pool.request(ApiKey.METADATA, MetadataRequest(topics=(topic,)))
            count += 1
        return count

    async def scenario(is_over: Callable[[], bool]) -> list[int]:
        async with ConnectionPool(
            parse_bootstrap(secure.bootstrap), security=client_security(texts)
        ) as pool:
            pool.on_retry = failures.append
            workers = [asyncio.ensure_future(work(pool)) for _ in range(WORKERS)]
            try:
                while not await asyncio.to_thread(is_over):  # noqa: ASYNC110 (the node counts)
                    await asyncio.sleep(0.1)
            finally:
                stopping.set()
            return await asyncio.gather(*workers)

    before = expired(secure)
    counts = asyncio.run(scenario(Patience(secure, connections=1).is_over))
    assert min(counts) > 0
    assert failures == []
    assert expired(secure) == before


def test_a_client_that_does_not_log_in_again_is_disconnected(secure: SecureNode) -> None:
    """The setting has an effect: aiokafka never renews its login."""

    before = expired(secure)

    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=secure.bootstrap,
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username=secure.security["user"],
            sasl_plain_password=secure.security["password"],
            ssl_context=ssl.create_default_context(cafile=secure.security["ca"]),
        )
        await producer.start()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while await asyncio.to_thread(expired, secure) == before:
                    await producer.send_and_wait("load", b"x")
                    await asyncio.sleep(0.1)
        finally:
            await producer.stop()

    asyncio.run(scenario())
