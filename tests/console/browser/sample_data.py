"""Topics, records, groups, transactions, a pipeline and a report that the pages show."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from riverrun.admin.reports import PublishedReport, publish_report
from riverrun.admin.state_records import StateWriter
from riverrun.chaos.publishing import report_content, summary_of
from riverrun.chaos.runner import ScenarioResult
from riverrun.chaos.scenarios.catalog import ALL as SCENARIOS
from riverrun.client.pool import ConnectionPool
from riverrun.model.names import PIPELINES_TOPIC
from riverrun.ports.clock import SystemClock

TOPICS = ("orders", "payments", "orders-dlq")
PARTITIONS = 3
ORDERS = 120
READ = 90
GROUP = "billing"
TRANSACTIONAL_ID = "till-1"
PIPELINE = "orders-to-table"
REPORT = "chaos-nightly"
REPORT_TITLE = "Chaos: 3 scenarios on riverrun"
ORIGIN: list[tuple[str, str | bytes | None]] = [("riverrun.topic", b"payments")]
"""Of the dead letters."""
SECONDS_MAX = 30


def write_samples(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS) for name in TOPICS])
    for future in made.values():
        future.result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(ORDERS):
        value = {"id": number, "amount": number * 5 % 97, "city": ("Oslo", "Lima")[number % 2]}
        producer.produce(
            "orders",
            json.dumps(value).encode(),
            key=f"customer-{number % 7}".encode(),
            partition=number % PARTITIONS,
            headers=[("source", b"sample")],
        )
    for number in range(3):
        producer.produce("orders-dlq", f"broken {number}".encode(), headers=ORIGIN)
    assert producer.flush(SECONDS_MAX) == 0, "all samples are written"
    _commit(bootstrap)
    _transact(bootstrap)


def _commit(bootstrap: str) -> None:
    """A group that has read a part of the orders."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    places = [TopicPartition("orders", at, READ // PARTITIONS) for at in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def _transact(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("payments", b"paid")
    producer.commit_transaction(SECONDS_MAX)


def publish_samples(bootstrap: str) -> None:
    """The state of a pipeline, and a report, as the programs publish them. They are made up, so
    pictures do not show them."""
    with ThreadPoolExecutor(1) as thread:  # Playwright's loop may run in this one
        thread.submit(asyncio.run, _publish(bootstrap)).result(SECONDS_MAX)


async def _publish(bootstrap: str) -> None:
    now_ms = SystemClock().now_ms()
    runs = [
        ScenarioResult(scenario=scenario, seed=seed, seconds=9.0 + seed)
        for seed, scenario in enumerate(SCENARIOS[:3], 1)
    ]
    report = PublishedReport(
        name=REPORT,
        kind="chaos",
        title=REPORT_TITLE,
        created_ms=now_ms,
        verdict="held",
        summary=summary_of(runs, 33.0),
        content=report_content(runs, "riverrun", 33.0),
    )
    query = {
        "name": "orders",
        "source": "topic orders",
        "sink": "delta table orders",
        "state": "running",
        "batch": 12,
        "rows": ORDERS,
        "lag": 4,
        "dead_letters": 3,
        "dead_letter_topic": "orders-dlq",
    }
    pipeline = {
        "name": PIPELINE,
        "state": "running",
        "host": "spark-1",
        "updated_ms": now_ms,
        "queries": [query],
        "declaration": {"sources": {"orders": "topic orders"}},
    }
    addresses = [
        (host, int(port))
        for host, _, port in (each.rpartition(":") for each in bootstrap.split(","))
    ]
    async with ConnectionPool(addresses) as pool:
        await publish_report(pool, report)
        await StateWriter(pool, PIPELINES_TOPIC).put(
            PIPELINE, json.dumps(pipeline).encode(), now_ms
        )
