"""DescribeNode on a real node: every subject, invalid requests, and a log that a snapshot cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.records.record import NewRecord
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.facts.metadata_diff import DiffQuery, MetadataComparer, MetadataDifference
from riverrun.server.facts.timeline import (
    RECORDS_PER_CALL_MAX,
    TimelinePage,
    TimelineQuery,
    naming_for,
    read_timeline,
)
from riverrun.storage.segment.reader import ColdRead, Slice
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from riverrun.wire.private.describe_node_response import DescribeNodeResponse
from tests.cluster.fakes import make_configs
from tests.metadata.opened import open_metadata, topic_records
from tests.processes import Riverrun, serve
from tests.server.access import OPEN_ACCESS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Riverrun]:
    with serve(tmp_path_factory.mktemp("facts"), peer="riverrun") as server:
        yield server


def asked(node: Riverrun, subject: str, query: object = None) -> DescribeNodeResponse:
    async def ask() -> DescribeNodeResponse:
        async with ConnectionPool(parse_bootstrap(node.bootstrap), client_id="facts") as pool:
            connection = await pool.any_connection()
            text = query if isinstance(query, str) else json.dumps(query or {})
            response: DescribeNodeResponse = await connection.request(
                ApiKey.DESCRIBE_NODE, DescribeNodeRequest(subject=subject, query=text), version=0
            )
            return response

    return asyncio.run(ask())


def content(node: Riverrun, subject: str, query: object = None) -> Any:
    response = asked(node, subject, query)
    assert response.error_code is ErrorCode.NONE, response.error_message
    return json.loads(response.content)


def create_topic(node: Riverrun, name: str) -> None:
    async def create() -> None:
        async with ConnectionPool(parse_bootstrap(node.bootstrap)) as pool:
            topic = CreatableTopic(
                name=name, num_partitions=2, replication_factor=1, assignments=(), configs=()
            )
            await pool.request(
                ApiKey.CREATE_TOPICS,
                CreateTopicsRequest(topics=(topic,), timeout_ms=10_000, validate_only=False),
            )
            producer = await Producer.open(pool, name)
            producer.add(NewRecord(b"value"))
            await producer.flush()

    asyncio.run(create())


def test_node_describes_itself(node: Riverrun) -> None:
    found = content(node, "node")
    assert found["node"] == 1
    assert found["version"]
    assert 0 <= found["uptime_seconds"] < 3600
    assert found["memory_bytes"] > 1_000_000
    assert found["disk_total"] > found["disk_free"] > 0
    assert len(found["directories"]) == 1


def test_connections_name_the_client_and_its_software(node: Riverrun) -> None:
    found = content(node, "connections", {"q": "FACTS"})
    assert found["total"] == len(found["items"]) == 1
    (mine,) = found["items"]
    assert mine["client_id"] == "facts"
    assert mine["software"] == "riverrun"
    assert mine["principal"] == "User:ANONYMOUS"
    assert mine["address"].startswith("127.0.0.1:")
    assert mine["last_api"] == "DescribeNode"
    assert mine["requests"] == 2
    assert mine["bytes_in"] > 0 < mine["bytes_out"]
    assert content(node, "connections", {"q": "nobody"}) == {
        "items": [],
        "total": 0,
        "members": [],
    }
    assert content(node, "connections", {"limit": 0})["total"] >= 1


def test_timeline_shows_the_newest_events_first(node: Riverrun) -> None:
    create_topic(node, "timed")
    page = content(node, "timeline", {"kinds": ["topic"]})
    assert page["items"][0]["subject"] == "timed"
    assert page["items"][0]["details"]["partitions"] == 2
    assert page["first_offset"] == 0
    assert page["next"] is None
    offset = page["items"][0]["offset"]
    older = content(node, "timeline", {"before": offset})
    assert all(event["offset"] < offset for event in older["items"])
    assert content(node, "timeline", {"q": "TIMED"})["items"] == page["items"][:1]


def test_difference_names_what_was_created(node: Riverrun) -> None:
    before = content(node, "timeline")["end_offset"] - 1
    create_topic(node, "new-topic")
    found = content(node, "diff", {"from": before, "to": 10**9})
    created = [change for change in found["changes"] if change["kind"] == "topic"]
    assert [change["subject"] for change in created] == ["new-topic"]
    assert created[0]["before"] is None
    assert created[0]["after"] == {"partitions": 2, "replication_factor": 1}
    nothing = content(node, "diff", {"from": before, "to": before})
    assert nothing["changes"] == []


def test_history_has_the_series_of_node_topics_and_groups(node: Riverrun) -> None:
    found = content(node, "history", {"minutes": 5, "series": ["cpu", "bytes_in"]})
    assert found["step_ms"] == 10_000
    assert {len(values) for values in found["series"].values()} == {30}
    assert content(node, "history", {"topic": "unknown"})["series"] == {}
    assert content(node, "history", {"group": "unknown"})["series"] == {}


@pytest.mark.parametrize(
    ("subject", "query"),
    [
        ("passwords", {}),
        ("history", {"series": ["nonsense"]}),
        ("history", {"series": ["lag"]}),
        ("history", {"topic": "t", "series": ["cpu"]}),
        ("history", {"minutes": 0}),
        ("history", {"minutes": 10**9}),
        ("history", {"step_seconds": 0}),
        ("history", {"step_seconds": 10**10}),
        ("history", '{"x":' + "[" * 30_000 + "]" * 30_000 + "}"),
        ("history", "{"),
        ("history", "[]"),
        ("history", '{"minutes": "many"}'),
        ("timeline", {"kinds": ["nonsense"]}),
        ("timeline", {"before": "x"}),
        ("diff", {}),
        ("diff", " " * 100_000 + "{}"),
    ],
)
def test_invalid_request_is_explained(node: Riverrun, subject: str, query: object) -> None:
    response = asked(node, subject, query)
    assert response.error_code is ErrorCode.INVALID_REQUEST
    assert response.error_message
    assert response.content == b""


# Long logs and snapshots, without a process


class Threads:
    """Threads for cold reads, as ``LogManager`` has them."""

    async def in_thread(self, work: Any) -> Any:
        return await asyncio.to_thread(work)

    async def load(self, cold: ColdRead) -> Slice:
        found = await asyncio.to_thread(cold.load)
        cold.adopt()
        return found


def services_of(metadata: MetadataLog) -> Any:
    return cast(
        Any,
        SimpleNamespace(
            metadata=metadata,
            log_manager=Threads(),
            clock=SystemClock(),
            access=OPEN_ACCESS,
            configs=make_configs(),
        ),
    )


CONTEXT = RequestContext(0, 1, "test", "127.0.0.1", "PLAINTEXT", 1)


async def page_of(metadata: MetadataLog, **query: Any) -> TimelinePage:
    return await read_timeline(services_of(metadata), CONTEXT, TimelineQuery(**query))


async def difference(metadata: MetadataLog, first: int, last: int) -> MetadataDifference:
    services = services_of(metadata)
    comparer = MetadataComparer(services, asyncio.Lock())
    return await comparer.compare(DiffQuery(from_=first, to=last), naming_for(services, CONTEXT))


def setting(value: int) -> ConfigRecord:
    return ConfigRecord(
        resource_type=2, resource_name="orders", name="retention.ms", value=str(value)
    )


@asynccontextmanager
async def with_settings(folder: Path, count: int, per_batch: int = 1) -> AsyncIterator[MetadataLog]:
    metadata = await open_metadata(OsFiles(), str(folder / "log"))
    task = asyncio.create_task(metadata.run())
    try:
        await metadata.append(topic_records("orders", 1))
        appended = [
            metadata.append([setting(first + each) for each in range(per_batch)])
            for first in range(0, count, per_batch)
        ]
        await asyncio.gather(*appended)
        yield metadata
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await metadata.stop()


def test_pages_of_a_long_log_have_every_event_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_settings(tmp_path, 2500) as metadata:
            seen: list[int] = []
            before: int | None = None
            pages = 0
            while True:
                page = await page_of(metadata, before=before, limit=500, kinds=("config",))
                seen += [event.offset for event in page.items]
                pages += 1
                if page.next is None:
                    break
                assert before is None or page.next < before
                before = page.next
            assert seen == sorted(set(seen), reverse=True)
            assert len(seen) == 2500
            assert pages >= 6

    asyncio.run(scenario())


def test_one_call_reads_a_bounded_number_of_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_settings(tmp_path, 10_000, per_batch=5000) as metadata:
            end = metadata.current.offset + 1
            page = await page_of(metadata, limit=1)
            assert page.next == end - RECORDS_PER_CALL_MAX
            assert page.items[0].records == RECORDS_PER_CALL_MAX
            nothing = await page_of(metadata, q="no such text")
            assert nothing.items == []
            assert nothing.next == end - RECORDS_PER_CALL_MAX

    asyncio.run(scenario())


def test_difference_has_values_before_and_after(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_settings(tmp_path, 3) as metadata:
            end = metadata.current.offset
            found = await difference(metadata, end - 1, end)
            (change,) = found.changes
            assert change.subject == "topic orders"
            assert change.before == {"retention.ms": "1"}
            assert change.after == {"retention.ms": "2"}
            swapped = await difference(metadata, end, end - 1)
            assert swapped.changes == found.changes

    asyncio.run(scenario())


def test_difference_is_available_from_the_oldest_snapshot_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_settings(tmp_path, 10) as metadata:
            first = metadata.current.offset
            await metadata.snapshot()
            await metadata.append([setting(100)])
            await metadata.snapshot()
            await metadata.append([setting(200)])
            await metadata.snapshot()
            await metadata.append([setting(300)])
            with pytest.raises(KafkaError, match="available from offset") as failure:
                await difference(metadata, first - 3, first)
            assert failure.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            found = await difference(metadata, first + 1, first + 3)
            (change,) = found.changes
            assert change.before == {"retention.ms": "100"}
            assert change.after == {"retention.ms": "300"}
            assert found.first_offset == first + 1
            page = await page_of(metadata)
            assert page.first_offset == first + 2
            assert page.next is None

    asyncio.run(scenario())
