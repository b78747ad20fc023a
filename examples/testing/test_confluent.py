"""An application with confluent-kafka: it reads orders and writes the total of each customer."""

import json
from collections import Counter

from confluent_kafka import Consumer, Producer

from riverrun.testing import Cluster, NewRecord


def total_orders(bootstrap: str, orders: str, totals: str, count: int) -> None:
    """The application: reads this many orders, then writes the totals."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "totals", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([orders])
    amounts: Counter[str] = Counter()
    for message in consumer.consume(count, timeout=30):
        order = json.loads(message.value() or b"{}")
        amounts[order["customer"]] += order["amount"]
    consumer.close()
    producer = Producer({"bootstrap.servers": bootstrap})
    for customer, amount in amounts.items():
        producer.produce(totals, key=customer, value=str(amount))
    producer.flush()


def test_each_customer_gets_a_total(riverrun_cluster: Cluster) -> None:
    orders = riverrun_cluster.topic(partitions=3)
    totals = riverrun_cluster.topic(config={"cleanup.policy": "compact"})
    bought = [("anna", 3), ("bert", 4), ("anna", 5)]
    riverrun_cluster.produce(
        orders,
        [
            NewRecord(json.dumps({"customer": name, "amount": n}).encode(), key=name.encode())
            for name, n in bought
        ],
    )

    total_orders(riverrun_cluster.bootstrap, orders, totals, len(bought))

    found = {record.key: record.text for record in riverrun_cluster.records(totals)}
    assert found == {b"anna": "8", b"bert": "4"}
    assert riverrun_cluster.groups()["totals"].lag == 0
