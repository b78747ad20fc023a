"""Writes events for the examples: clicks, orders with payments, changes of customers.

python examples/events.py clicks --count 10000
python examples/events.py shop --rate 100          # until Ctrl-C
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from riverrun.client.pool import ClusterUnreachable, ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.records.record import NewRecord
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest

Event = tuple[str, str, dict[str, object] | None]
"""Topic, key and value. A value of None is a tombstone."""
PARTITIONS = 3


def clicks(first: int, start: float) -> Iterator[Event]:
    chance = random.Random(7)
    number = first
    while True:
        user = f"user-{chance.randrange(50)}"
        yield (
            "clicks",
            user,
            {
                "id": number,
                "user": user,
                "page": f"/products/{chance.randrange(20)}",
                "action": chance.choices(("view", "basket", "buy"), (8, 2, 1))[0],
                "time": _time(start + number * 0.2),
            },
        )
        number += 1


def shop(first: int, start: float) -> Iterator[Event]:
    chance = random.Random(7)
    number = first
    while True:
        at = start + number * 0.2
        customer, amount = chance.randrange(100), round(chance.uniform(5, 500), 2)
        yield (
            "orders",
            str(number),
            {
                "order_id": number,
                "customer": customer,
                "amount": amount,
                "ordered": _time(at),
            },
        )
        method = chance.choice(("card", "invoice"))
        paid = _time(at + chance.uniform(1, 300))
        yield "payments", str(number), {"order_id": number, "method": method, "paid": paid}
        number += 1


def customers(first: int, start: float) -> Iterator[Event]:
    chance = random.Random(7)
    number = first
    while True:
        customer = chance.randrange(200)
        kind = chance.choices(("c", "d", "tombstone"), (10, 1, 1))[0]
        city = chance.choice(("Oslo", "Lima", "Pune", "Kyiv"))
        change: dict[str, object] = {
            "id": customer,
            "name": f"customer {customer}",
            "city": city,
            "operation": kind,
        }
        yield "customers", str(customer), None if kind == "tombstone" else change
        number += 1


EVENTS = {"clicks": clicks, "shop": shop, "customers": customers}
TOPICS = {"clicks": ("clicks",), "shop": ("orders", "payments"), "customers": ("customers",)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


async def write(bootstrap: str, kind: str, count: int, rate: float, first: int) -> None:
    async with ConnectionPool(parse_bootstrap(bootstrap)) as pool:
        topics = tuple(
            CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=-1,
                assignments=(),
                configs=(),
            )
            for name in TOPICS[kind]
        )
        # The response is ignored: existing topics stay unchanged.
        await pool.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics))
        producers = {name: await Producer.open(pool, name) for name in TOPICS[kind]}
        began = time.time()
        written = 0
        for topic, key, value in EVENTS[kind](first, began):
            if count and written >= count:
                break
            data = None if value is None else json.dumps(value).encode()
            now_ms = int(time.time() * 1000)
            record = NewRecord(key=key.encode(), value=data, timestamp=now_ms)
            if producers[topic].add(record):
                await producers[topic].flush()
            written += 1
            if rate and written % max(1, int(rate / 10)) == 0:
                for producer in producers.values():
                    await producer.flush()
                await asyncio.sleep(max(0.0, began + written / rate - time.time()))
        for producer in producers.values():
            await producer.flush()
    print(f"wrote {written} events to {', '.join(TOPICS[kind])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=EVENTS)
    bootstrap = os.environ.get("RIVERRUN_BOOTSTRAP", "127.0.0.1:9092")
    parser.add_argument(
        "--bootstrap", default=bootstrap, help="address of the cluster; default: RIVERRUN_BOOTSTRAP"
    )
    parser.add_argument("--count", type=int, default=0, help="number of events; 0 is unlimited")
    parser.add_argument("--rate", type=float, default=0, help="events per second; 0 is unlimited")
    parser.add_argument("--first", type=int, default=0, help="number of the first event")
    given = parser.parse_args()
    if not given.count and not given.rate:
        parser.error("set --count, or --rate to write until Ctrl-C")
    try:
        asyncio.run(write(given.bootstrap, given.kind, given.count, given.rate, given.first))
    except (ClusterUnreachable, ValueError) as error:
        parser.exit(3, f"cannot reach a cluster: {error}; set its address with --bootstrap\n")
    except KeyboardInterrupt:
        parser.exit(0)


if __name__ == "__main__":
    main()
