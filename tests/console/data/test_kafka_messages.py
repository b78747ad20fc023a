"""Messages of Apache Kafka in the console, and pages that only riverrun nodes can fill."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.console.rest.test_apache_kafka import ROOT, kafka, run
from tests.processes import ApacheKafka

__all__ = ["kafka"]

pytestmark = [pytest.mark.slow, pytest.mark.peer]


def test_messages_are_written_and_read(kafka: ApacheKafka) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        topics = f"{ROOT}/topics"
        made = await client.post(
            topics, json={"name": "orders", "partitions": 3, "replication_factor": 1}
        )
        assert made.status_code == 200, made.text
        records: list[dict[str, Any]] = [
            {"key": f"k{number}", "value": f"value-{number}"} for number in range(30)
        ]
        done = await client.post(f"{topics}/orders/messages", json={"records": records})
        assert done.status_code == 200, done.text
        seen: list[str] = []
        cursor = ""
        while True:
            query = f"limit=7&direction=older{cursor}"
            page = (await client.get(f"{topics}/orders/messages?{query}")).json()
            seen += [item["value"]["text"] for item in page["items"]]
            if page["older"] is None:
                break
            cursor = f"&cursor={page['older']}"
        assert sorted(seen) == sorted(record["value"] for record in records)
        found = (await client.get(f"{topics}/orders/messages?filter=VALUE-7")).json()
        assert [item["value"]["text"] for item in found["items"]] == ["value-7"]
        lines = (await client.get(f"{topics}/orders/export")).text.splitlines()
        assert len(lines) == 30

    run(kafka, story)


@pytest.mark.parametrize(
    "path",
    ["history", "history?node=1", "timeline", "timeline/diff?from=0&to=5", "nodes/1/connections"],
)
def test_facts_of_riverrun_nodes_are_not_supported(kafka: ApacheKafka, path: str) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for _ in range(2):
            response = await client.get(f"{ROOT}/{path}")
            assert response.status_code == 501, response.text
            assert response.json()["error"]["code"] == "not_supported"

    run(kafka, story)


def test_nothing_is_published_at_first(kafka: ApacheKafka) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for path in ("pipelines", "reports"):
            response = await client.get(f"{ROOT}/{path}")
            assert response.json() == {"items": [], "total": 0}

    run(kafka, story)
