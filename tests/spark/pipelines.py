"""Helpers for tests of pipelines: write and read topics, run a pipeline, read its table."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from riverrun.client.fetcher import read_from
from riverrun.client.partitions import fetch
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run.supervisor import PipelineSupervisor
from riverrun.pipeline.topics import create_topic, look_up_topics
from riverrun.records.record import NewRecord, Record

RUN_SECONDS_MAX = 300
RESTARTS_MAX = 2
"""Under load Python workers may start too late, and a broker may be dying."""

Value = dict[str, Any] | str | bytes | None


def write(bootstrap: str, topic: str, values: Iterable[Value], keys: Sequence[str] = ()) -> None:
    """Write dicts as JSON, strings and bytes unchanged; without keys, to all partitions in turn."""

    async def produce() -> None:
        async with ConnectionPool(parse_bootstrap(bootstrap)) as pool:
            producer = await Producer.open(pool, topic)
            for place, value in enumerate(values):
                text = json.dumps(value) if isinstance(value, dict) else value
                data = text.encode() if isinstance(text, str) else text
                key = keys[place].encode() if keys else None
                at = None if keys else place % len(producer.partitions)
                if producer.add(NewRecord(key=key, value=data, timestamp=_now_ms()), at):
                    await producer.flush()
            await producer.flush()

    create_topic(bootstrap, topic)
    asyncio.run(produce())


def read(bootstrap: str, topic: str) -> list[Record]:
    """All committed records of a topic, partition by partition."""

    async def fetch_all() -> list[Record]:
        records: list[Record] = []
        async with ConnectionPool(parse_bootstrap(bootstrap)) as pool:
            for index in look_up_partitions:
                position = 0
                while True:
                    part = await fetch(
                        pool, topic, index, position, max_wait_ms=100, is_committed_only=True
                    )
                    more, position = read_from(part.records, position, part.aborted)
                    records += more
                    if position >= part.last_stable_offset:
                        break
        return records

    look_up_partitions = look_up_topics(bootstrap, [topic]).partitions[topic]
    return asyncio.run(fetch_all())


def _now_ms() -> int:
    return int(time.time() * 1000)


class Runs:
    """Runs pipelines in the shared session until all input is processed."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder

    def once(self, text: str, name: str = "pipeline.toml") -> PipelineSupervisor:
        """Run to the end. Fails on repeated restarts; the test checks permanent failures."""
        file = self.folder / name
        file.write_text(text)
        pipeline = read_pipeline(file, bootstrap=self.bootstrap)
        supervisor = PipelineSupervisor(self.spark, pipeline, is_once=True)
        pause = threading.Event()
        end = time.monotonic() + RUN_SECONDS_MAX
        while not supervisor.is_over:
            assert time.monotonic() < end, supervisor.status()
            supervisor.tick()
            for query in supervisor.queries:
                assert query.status.restarts <= RESTARTS_MAX, query.status.reason
            pause.wait(0.05)
        return supervisor

    def rows(self, path: str) -> list[dict[str, Any]]:
        """The rows of a Delta table."""
        found = DeltaTable(str(self.folder / path)).to_pyarrow_table()
        return [dict(row) for row in found.to_pylist()]


def headers_of(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}
