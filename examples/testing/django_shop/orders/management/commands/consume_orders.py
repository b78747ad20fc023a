"""``manage.py consume_orders``: stores the orders of the topic in the database."""

import json
from typing import Any

from confluent_kafka import Consumer
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from orders.models import Order


class Command(BaseCommand):
    help = "Store the orders of the topic in the database."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--limit", type=int, help="Stop after this many orders.")

    def handle(self, *args: Any, limit: int | None, **options: Any) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": settings.KAFKA_BOOTSTRAP,
                "group.id": "orders",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([settings.ORDERS_TOPIC])
        count = 0
        while limit is None or count < limit:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            order = json.loads(message.value() or b"{}")
            Order.objects.get_or_create(
                partition=message.partition(),
                offset=message.offset(),
                defaults={"customer": order["customer"], "amount": order["amount"]},
            )
            consumer.commit(message=message, asynchronous=False)
            count += 1
        consumer.close()
