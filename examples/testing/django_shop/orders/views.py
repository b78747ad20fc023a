"""POST /orders writes the order to the topic, and answers when all in-sync replicas have it."""

import json
from functools import cache

from confluent_kafka import KafkaError, Message, Producer
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

FLUSH_SECONDS_MAX = 30


@cache
def producer_of(bootstrap: str) -> Producer:
    """One producer for each process."""
    return Producer({"bootstrap.servers": bootstrap, "acks": "all"})


@csrf_exempt
@require_POST
def accept_order(request: HttpRequest) -> HttpResponse:
    order = json.loads(request.body)
    written: list[Message] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            written.append(message)

    producer = producer_of(settings.KAFKA_BOOTSTRAP)
    producer.produce(
        settings.ORDERS_TOPIC,
        key=order["customer"],
        value=json.dumps(order),
        on_delivery=delivered,
    )
    producer.flush(FLUSH_SECONDS_MAX)
    if not written:
        return JsonResponse({"error": "the order was not written"}, status=503)
    return JsonResponse({"offset": written[0].offset()}, status=202)
