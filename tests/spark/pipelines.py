"""What tests of pipelines share: records into topics, runs in the one session, tables out."""

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
from riverrun.pipeline.run.supervisor import Supervisor
from riverrun.pipeline.topics import look_up, make_topic
from riverrun.records.record import NewRecord, Record

RUN_SECONDS_MAX = 300
RESTARTS_MAX = 2
"""Under load Python workers of Spark may come too late, and a broker may just be dying."""

Value = dict[str, Any] | str | None


def write(bootstrap: str, topic: str, values: Iterable[Value], keys: Sequence[str] = ()) -> None:
    """Values as JSON, texts as they are; without keys they go round all partitions."""

    async def written() -> None:
        async with ConnectionPool(parse_bootstrap(bootstrap)) as pool:
            producer = await Producer.open(pool, topic)
            for place, value in enumerate(values):
                text = json.dumps(value) if isinstance(value, dict) else value
                data = None if text is None else text.encode()
                key = keys[place].encode() if keys else None
                at = None if keys else place % len(producer.partitions)
                if producer.add(NewRecord(key=key, value=data, timestamp=_now_ms()), at):
                    await producer.flush()
            await producer.flush()

    make_topic(bootstrap, topic)
    asyncio.run(written())


def read(bootstrap: str, topic: str) -> list[Record]:
    """All records of a topic, partition by partition."""

    async def found() -> list[Record]:
        records: list[Record] = []
        async with ConnectionPool(parse_bootstrap(bootstrap)) as pool:
            for index in look_up_partitions:
                position = 0
                while True:
                    part = await fetch(pool, topic, index, position, max_wait_ms=100)
                    more, position = read_from(part.records, position)
                    records += more
                    if position >= part.high_watermark:
                        break
        return records

    look_up_partitions = look_up(bootstrap, [topic]).partitions[topic]
    return asyncio.run(found())


def _now_ms() -> int:
    return int(time.time() * 1000)


class Runs:
    """A pipeline's file, run in the shared session until nothing is left to do."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder

    def once(self, text: str, name: str = "pipeline.toml") -> Supervisor:
        """Fails when a query fails; a query that only a person can help is left to the test."""
        file = self.folder / name
        file.write_text(text)
        pipeline = read_pipeline(file, bootstrap=self.bootstrap)
        supervisor = Supervisor(self.spark, pipeline, is_once=True)
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
        """Of a Delta table."""
        found = DeltaTable(str(self.folder / path)).to_pyarrow_table()
        return [dict(row) for row in found.to_pylist()]


def headers_of(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}
