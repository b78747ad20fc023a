"""A web service with FastAPI and aiokafka: POST /orders writes to a topic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from riverrun.testing import Cluster


class Order(BaseModel):
    customer: str
    amount: int


def create_app(bootstrap: str, topic: str) -> FastAPI:
    producers: list[AIOKafkaProducer] = []

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            producers.append(producer)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def accept(order: Order) -> dict[str, int]:
        sent = await producers[0].send_and_wait(
            topic, key=order.customer.encode(), value=order.model_dump_json().encode()
        )
        return {"offset": sent.offset}

    return app


def test_an_accepted_order_is_in_the_topic(riverrun_cluster: Cluster, riverrun_topic: str) -> None:
    with TestClient(create_app(riverrun_cluster.bootstrap, riverrun_topic)) as client:
        response = client.post("/orders", json={"customer": "anna", "amount": 3})
    assert (response.status_code, response.json()) == (202, {"offset": 0})
    [record] = riverrun_cluster.records(riverrun_topic)
    assert record.key == b"anna"
    assert Order.model_validate_json(record.text).amount == 3
