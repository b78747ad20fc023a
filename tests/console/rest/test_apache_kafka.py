"""The REST API of a console that serves Apache Kafka."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.console.app import Console, ConsoleSettings
from riverrun.console.clusters import ClusterSettings
from tests.processes import ApacheKafka, serve

pytestmark = [pytest.mark.slow, pytest.mark.peer]

ROOT = "/api/v1/clusters/main"
Call = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder) / "k", peer="kafka") as node:
        node.wait_for_coordinator()
        yield node


@asynccontextmanager
async def console_of(kafka: ApacheKafka) -> AsyncIterator[httpx.AsyncClient]:
    settings = ClusterSettings(name="main", bootstrap=kafka.bootstrap)
    console = Console(ConsoleSettings(clusters=(settings,)))
    transport = httpx.ASGITransport(app=console.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:9094", timeout=60
    ) as client:
        yield client
    await console.sessions.close()


def run(kafka: ApacheKafka, story: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with console_of(kafka) as client:
            await story(client)

    asyncio.run(whole())


def test_pages_that_need_no_riverrun_work(kafka: ApacheKafka) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for path in ("quorum", "transactions", "transactions-hanging", "users", "quotas"):
            response = await client.get(f"{ROOT}/{path}")
            assert response.status_code == 200, (path, response.text)
        moves = (await client.get(f"{ROOT}/moves")).json()
        assert (moves["moves"], moves["plans"], moves["supported"]) == ([], [], False)
        acls = (await client.get(f"{ROOT}/acls")).json()
        assert (acls["items"], acls["authorizer"]) == ([], False)
        quota = {"user": "alice", "limits": {"producer_byte_rate": 1000}}
        assert (await client.put(f"{ROOT}/quotas", json=quota)).status_code == 200

    run(kafka, story)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("balance", {}),
        ("topics/orders/move", {"to": [1]}),
        ("nodes/1/decommission", {}),
    ],
)
def test_plans_are_not_supported(kafka: ApacheKafka, path: str, body: dict[str, Any]) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        response = await client.post(f"{ROOT}/{path}", json=body)
        assert response.status_code == 501
        assert response.json()["error"]["code"] == "not_supported"

    run(kafka, story)


def test_v3_creates_topics_and_writes_records(kafka: ApacheKafka) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        (found,) = (await client.get("/v3/clusters")).json()["data"]
        root = f"/v3/clusters/{found['cluster_id']}/topics"
        made = await client.post(root, json={"topic_name": "orders", "partitions_count": 2})
        assert made.status_code == 201, made.text
        again = await client.post(root, json={"topic_name": "orders"})
        assert (again.status_code, again.json()["error_code"]) == (400, 40002)
        record = {"partition_id": 1, "value": {"type": "STRING", "data": "x"}}
        report = (await client.post(f"{root}/orders/records", json=record)).json()
        assert (report["error_code"], report["partition_id"], report["offset"]) == (200, 1, 0)
        unknown = await client.get(f"{root}/nosuch")
        assert (unknown.status_code, unknown.json()["error_code"]) == (404, 40403)
        setting = await client.put(f"{root}/orders/configs/retention.ms", json={"value": "1000"})
        assert setting.status_code == 204
        assert (await client.delete(f"{root}/orders")).status_code == 204

    run(kafka, story)
