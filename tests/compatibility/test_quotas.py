"""Quotas of clients: kafka-configs sets them, and real clients stay within them."""

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.compatibility.apache import ApacheTools
from tests.compatibility.confluent import send
from tests.processes import Server, serve, until

RATE = 1_000_000
VALUE = bytes(10_000)
COUNT = 3000
UNSENT_MAX = 200
FILLING_SECONDS = 12.0
MEASURED_SECONDS = 12.0
"""More than all windows: within them the rate goes up and down by some percent."""
SECONDS_MAX = 60.0


@pytest.mark.peer
def test_kafka_configs_of_users_clients_and_addresses(tools: ApacheTools, server: Server) -> None:
    at = ("kafka.admin.ConfigCommand", "--bootstrap-server", server.bootstrap)
    rates = "producer_byte_rate=1234567,request_percentage=250.5"
    for entity, quotas in (
        (("--entity-type", "users", "--entity-name", "quota-user"), rates),
        (("--entity-type", "clients", "--entity-name", "quota-client"), rates),
        (("--entity-type", "users", "--entity-default"), "controller_mutation_rate=100000.0"),
        (("--entity-type", "ips", "--entity-name", "10.9.8.7"), "connection_creation_rate=77"),
    ):
        changed = tools.run(*at, "--alter", *entity, "--add-config", quotas).check()
        assert "Completed updating" in changed.text

        def described(entity: tuple[str, ...] = entity) -> str:
            return tools.run(*at, "--describe", *entity).check().text

        wanted = [one.partition("=") for one in quotas.split(",")]
        until(
            lambda: all(f"{name}={value}" in described() for name, _, value in wanted),  # noqa: B023
            seconds=20,
            what=f"{quotas} of {entity}",
        )
        names = ",".join(name for name, _, _ in wanted)
        tools.run(*at, "--alter", *entity, "--delete-config", names).check()
        until(lambda: names not in described(), seconds=20, what="it is gone")  # noqa: B023
    user = ("--entity-type", "users", "--entity-name", "a")
    both = (*user, "--entity-type", "clients", "--entity-name", "b")
    tools.run(*at, "--alter", *both, "--add-config", "consumer_byte_rate=9999999").check()
    shown = tools.run(*at, "--describe", "--entity-type", "users", "--entity-type", "clients")
    assert "consumer_byte_rate=9999999.0" in shown.check().text
    tools.run(*at, "--alter", *both, "--delete-config", "consumer_byte_rate").check()


@pytest.fixture
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server where the client `slow` may move one megabyte a second each way."""
    with serve(tmp_path_factory.mktemp("quotas")) as running:
        running.wait_for_coordinator()
        with running.client() as client:
            rows = [
                {"key": key, "value": float(RATE), "remove": False}
                for key in ("producer_byte_rate", "consumer_byte_rate")
            ]
            entity = [{"entity_type": "client-id", "entity_name": "slow"}]
            fields = {"entries": [{"entity": entity, "ops": rows}], "validate_only": False}
            made = client.request("alter_client_quotas", 1, fields)
            assert made["entries"][0]["error_code"] == "NONE", made
        yield running


@pytest.mark.slow
def test_producer_stays_within_its_rate(limited: Server) -> None:
    times: list[float] = []
    throttled: list[int] = []

    def statistics(text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        throttled.append(max((row["throttle"]["max"] for row in brokers), default=0))

    producer = Producer(
        {
            "bootstrap.servers": limited.bootstrap,
            "client.id": "slow",
            "batch.size": 65536,
            "statistics.interval.ms": 1000,
            "stats_cb": statistics,
        }
    )

    def delivered(error: object, _: Message) -> None:
        assert error is None, error
        times.append(time.monotonic())

    pace = Pace()

    def sent() -> bool:
        while pace.may_move() and len(producer) < UNSENT_MAX:
            producer.produce("produced", VALUE, on_delivery=delivered)
        producer.poll(0.01)
        return pace.is_over

    until(sent, seconds=SECONDS_MAX, what="the end of the measurement")
    producer.purge()
    assert _rate(times) == pytest.approx(RATE, rel=0.05)
    assert max(throttled) > 0, "the client was not told to wait"


@pytest.mark.slow
def test_consumer_stays_within_its_rate(limited: Server) -> None:
    send(limited.bootstrap, "consumed", [VALUE] * COUNT, batch_size=65536)
    consumer = Consumer(
        {
            "bootstrap.servers": limited.bootstrap,
            "client.id": "slow",
            "group.id": "g",
            "fetch.message.max.bytes": 100_000,
            "queued.max.messages.kbytes": 512,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition("consumed", 0, 0)])
    times: list[float] = []
    pace = Pace()

    def read() -> bool:
        while not pace.is_over and pace.may_move():
            times.extend(time.monotonic() for one in consumer.consume(1, 1.0) if not one.error())
        return pace.is_over

    until(read, seconds=SECONDS_MAX, what="the end of the measurement")
    consumer.close()
    assert _rate(times) == pytest.approx(RATE, rel=0.05)


class Pace:
    """Stays a little below the rate until its windows are full, then moves as fast as it can.

    A new client may use ten seconds of its rate at once, and then waits until they are forgotten.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._moved = 0

    def may_move(self) -> bool:
        seconds = time.monotonic() - self._began
        if seconds < FILLING_SECONDS and self._moved * len(VALUE) >= 0.95 * RATE * seconds:
            return False
        self._moved += 1
        return True

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began >= FILLING_SECONDS + MEASURED_SECONDS


def _rate(times: list[float]) -> float:
    """Bytes a second at the end."""
    later = [at for at in times if at >= times[-1] - MEASURED_SECONDS + 1]
    return (len(later) - 1) * len(VALUE) / (later[-1] - later[0])
