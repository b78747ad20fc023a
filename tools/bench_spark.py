"""`make bench-spark`: compares our Spark source and sink with Spark's own Kafka connector.

Both read, write and stream in turn against three riverrun nodes on this machine. Ours also writes
exactly once, which the connector cannot. Each cell is the best of its rounds. The fixed costs of a query and of a stream are measured separately, with a topic
of one row; all other numbers include them. `--scale 0.05` gives a quick estimate, `--bytes 1000`
only the rows of that size.
"""

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from pyspark_riverrun import session
from tests.peers import MissingPeer
from tests.spark.connector import find_connector

PARTITIONS = 4
PORT = 29400
OURS, THEIRS, ONCE = "riverrun", "kafka", "once"
"""``ONCE`` is our sink with kafka.delivery=exactly-once."""


@dataclass(frozen=True)
class Data:
    """The records of one topic."""

    rows: int
    value_bytes: int
    batch_bytes: int
    codec: str

    @property
    def label(self) -> str:
        rows = f"{self.rows / 1e6:g} M" if self.rows >= 1e5 else str(self.rows)
        size = f"{self.batch_bytes // 1000} KB"
        return f"{rows} × {self.value_bytes} B, batches of {size}, {self.codec}"

    @property
    def topic(self) -> str:
        return f"b{self.rows}-{self.value_bytes}-{self.batch_bytes}-{self.codec}"


@dataclass
class Cell:
    """The best round of one measurement with one source."""

    seconds: float = float("inf")
    cpu_seconds: float = float("inf")


@dataclass
class Bench:
    spark: SparkSession
    bootstrap: str
    sources: list[str]
    rounds: int
    folder: Path
    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)

    def frame(self, data: Data) -> DataFrame:
        filler = data.value_bytes - 10
        return self.spark.range(data.rows).selectExpr(
            "cast(id as string) key",
            f"concat(lpad(cast(id as string), 10, '0'), repeat('x', {filler})) value",
        )

    def read(self, source: str, topic: str) -> DataFrame:
        return self.spark.read.format(source).options(**self._from(topic)).load()

    def _from(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}

    def write(self, source: str, data: Data, topic: str) -> None:
        writer = self.frame(data).write.format(format_of(source)).mode("append")
        writer.options(**self._to(source, data, topic)).save()

    def _to(self, source: str, data: Data, topic: str) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": topic,
            "kafka.batch.size": str(data.batch_bytes),
            "kafka.compression.type": data.codec,
            # Lets the connector fill its batches too.
            "kafka.linger.ms": "20",
        }
        return options | ({"kafka.delivery": "exactly-once"} if source == ONCE else {})

    def stream(self, source: str, data: Data, sink: str, at: Path) -> list[dict[str, Any]]:
        """``sink`` is a format, or ``topic`` for a copy of the topic with the same source."""
        reader = self.spark.readStream.format(format_of(source)).options(**self._from(data.topic))
        frame = reader.option("startingOffsets", "earliest").option(
            # A few more, because both sources round down per partition.
            "maxOffsetsPerTrigger",
            str(data.rows // 4 + PARTITIONS),
        )
        rows = frame.load()
        if sink == "topic":
            writer = rows.select("key", "value").writeStream.format(format_of(source))
            writer = writer.options(**self._to(source, data, f"{at.name}-copy"))
        else:
            writer = rows.writeStream.format(sink)
        if sink == "parquet":
            writer = writer.option("path", str(at / "table"))
        writer = writer.option("checkpointLocation", str(at / "ck"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress]

    def compare(
        self, what: str, about: str, work: Callable[[str], Any], *, has_once: bool = False
    ) -> None:
        """Measure the same work with each source in turn, and with exactly-once writes."""
        for _ in range(self.rounds):
            for source in [*self.sources, ONCE] if has_once else self.sources:
                cell = self.cells.setdefault((what, about, source), Cell())
                cpu, start = cpu_seconds(), time.perf_counter()
                work(source)
                seconds = time.perf_counter() - start
                if seconds < cell.seconds:
                    cell.seconds, cell.cpu_seconds = seconds, cpu_seconds() - cpu

    def show(self, what: str, about: str, rows: int, row_bytes: int) -> None:
        print(f"{what}: {about}")
        for source in [*self.sources, ONCE]:
            cell = self.cells.get((what, about, source))
            if cell is None:
                continue
            rate = rows / cell.seconds
            megabytes = rate * row_bytes / 1e6
            text = f"  {source:9} {rate:>12,.0f} rows/s {megabytes:8.1f} MB/s"
            print(f"{text} {cell.seconds:8.2f} s {cell.cpu_seconds:8.1f} CPU s")
        if len(self.sources) == 2:
            ours, theirs = (self.cells[what, about, source].seconds for source in self.sources)
            print(f"  ratio {theirs / ours:.2f}", flush=True)
        once = self.cells.get((what, about, ONCE))
        if once is not None:
            plain = self.cells[what, about, OURS].seconds
            print(f"  exactly once / at least once {plain / once.seconds:.2f}", flush=True)


def format_of(source: str) -> str:
    return OURS if source == ONCE else source


def cpu_seconds() -> float:
    """CPU time of this process and its descendants: Spark, its Python workers and the nodes."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def run(bench: Bench, scale: float, sizes: list[int]) -> None:
    one = Data(1, 100, 16_000, "none")
    bench.write(OURS, one, one.topic)
    fixed = "fixed cost of a query"
    bench.compare(fixed, "one row", lambda source: _noop(bench.read(source, one.topic)))
    bench.show(fixed, "one row", 1, 100)
    fixed = "fixed cost of a stream"
    bench.compare(fixed, "one row", _stream(bench, one, "noop", {}))
    bench.show(fixed, "one row", 1, 100)
    for size, count in ((100, 4_000_000), (1000, 1_000_000)):
        if size not in sizes:
            continue
        for batch_bytes in (16_000, 1_000_000):
            for codec in ("none", "zstd"):
                _rows_of(bench, Data(max(1, int(count * scale)), size, batch_bytes, codec))


def _rows_of(bench: Bench, data: Data) -> None:
    written: dict[str, int] = {}

    def write(source: str) -> None:
        written[source] = written.get(source, 0) + 1
        bench.write(source, data, f"{data.topic}-{source}-{written[source]}")

    latencies: dict[str, list[int]] = {}
    size = data.value_bytes + 7
    bench.compare("write", data.label, write, has_once=True)
    bench.show("write", data.label, data.rows, size)
    bench.write(OURS, data, data.topic)
    reads = {
        "read to noop": lambda source: _noop(bench.read(source, data.topic)),
        "read, sum of lengths": lambda source: (
            bench.read(source, data.topic).selectExpr("sum(length(value))").collect()
        ),
        "stream to noop": _stream(bench, data, "noop", latencies),
        "stream to a table": _stream(bench, data, "parquet", latencies),
        "stream to a topic": _stream(bench, data, "topic", latencies),
    }
    for what, work in reads.items():
        latencies.clear()
        bench.compare(what, data.label, work, has_once=what == "stream to a topic")
        bench.show(what, data.label, data.rows, size)
        for source, found in latencies.items():
            print(f"  {source:9} micro-batches of {sorted(found)[len(found) // 2]} ms (median)")


def _stream(
    bench: Bench, data: Data, sink: str, latencies: dict[str, list[int]]
) -> Callable[[str], None]:
    def stream(source: str) -> None:
        at = Path(tempfile.mkdtemp(dir=bench.folder))
        progress = bench.stream(source, data, sink, at)
        latencies.setdefault(source, []).extend(
            one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]
        )
        shutil.rmtree(at)

    return stream


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@contextlib.contextmanager
def three_nodes(folder: Path) -> Iterator[str]:
    command = [str(Path(sys.executable).with_name("riverrun")), "up", "--nodes", "3", "--json"]
    command += ["--data", str(folder / "nodes"), "--port", str(PORT)]
    command += ["--set", f"num.partitions={PARTITIONS}"]
    with open(folder / "nodes.log", "w") as log:
        nodes = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert nodes.stdout is not None
        line = nodes.stdout.readline()
        if not line:
            raise SystemExit((folder / "nodes.log").read_text()[-2000:])
        yield json.loads(line)["bootstrap"]
    finally:
        nodes.terminate()
        nodes.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1000], help="row sizes")
    chosen = parser.parse_args()
    # Stop the nodes on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))
    config = {"spark.driver.memory": "2g", "spark.local.dir": str(folder)}
    sources = [OURS]
    try:
        config["spark.jars"] = ",".join(str(jar) for jar in find_connector())
        sources.append(THEIRS)
    except MissingPeer as missing:
        print(f"Without Spark's connector: {missing}")
    try:
        with three_nodes(folder) as bootstrap:
            spark = session("local[2]", "bench", ui=False, config=config)
            spark.sparkContext.setLogLevel("ERROR")
            run(Bench(spark, bootstrap, sources, chosen.rounds, folder), chosen.scale, chosen.bytes)
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
