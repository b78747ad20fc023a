"""The metadata of very many partitions: `python -m tools.bench_metadata`, a table in Markdown.

Each row runs in a process of its own, so that its memory is its own. Measured are the image, its
snapshot, and the decisions of a controller when one broker dies. The longest step is what holds the
event loop without a pause.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.departure import Departure
from riverrun.cluster.partitions.elect_leaders import balance
from riverrun.cluster.partitions.leadership import elect_leaderless, fence
from riverrun.metadata.bootstrap import first_records
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.loading import Loading
from riverrun.metadata.records import (
    BrokerEndpoint,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
    encode,
)
from riverrun.metadata.snapshot import Snapshot, SnapshotId, snapshot_batches
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.storage.settings import LogSettings

SIZES = ((30_000, 3, 1_000), (100_000, 100, 1_000), (1_000_000, 1_000, 1_000))
"""Partitions, brokers, partitions of a topic."""
REPLICAS = 3
KIB = 1024
T = TypeVar("T")


class Steps:
    """CPU seconds of work that is done in steps."""

    def __init__(self) -> None:
        self.total = self.longest = 0.0

    def run(self, steps: Iterable[T]) -> None:
        for _ in self.each(steps):
            pass

    def each(self, steps: Iterable[T]) -> Iterator[T]:
        iterator = iter(steps)
        while True:
            began = time.process_time()
            found = [one for _, one in zip(range(1), iterator, strict=False)]
            took = time.process_time() - began
            self.total += took
            self.longest = max(self.longest, took)
            if not found:
                return
            yield found[0]


def records_of(partitions: int, brokers: int, topic_size: int) -> Iterator[Record]:
    rng = random.Random(7)
    directories = [UUID(int=rng.getrandbits(128)) for _ in range(brokers)]
    yield from first_records()
    for number, directory in enumerate(directories):
        yield RegisterBrokerRecord(
            broker_id=number,
            incarnation_id=UUID(int=number + 1),
            broker_epoch=number,
            end_points=(
                BrokerEndpoint(name="PLAINTEXT", host=f"h{number}", port=9092, security_protocol=0),
            ),
            features=(),
            rack=f"rack{number % REPLICAS}",
            fenced=False,
            log_dirs=(directory,),
        )
    for topic in range(partitions // topic_size):
        topic_id = UUID(int=rng.getrandbits(128))
        yield TopicRecord(name=f"topic-{topic}", topic_id=topic_id)
        for index in range(topic_size):
            nodes = tuple(rng.sample(range(brokers), REPLICAS))
            yield PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=nodes,
                isr=nodes,
                removing_replicas=(),
                adding_replicas=(),
                leader=nodes[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=tuple(directories[node] for node in nodes),
            )


def resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // KIB


def replayed(image: Image, records: Iterable[Record]) -> Image:
    delta, offset = Delta(image), image.offset
    for record in records:
        delta.replay(record)
        offset = Offset(offset + 1)
    return delta.publish(offset=offset, epoch=LeaderEpoch(1), timestamp=0)


def write(path: Path, partitions: int, brokers: int, topic_size: int) -> dict[str, object]:
    """Write the snapshot of an image."""
    image = replayed(Image(), records_of(partitions, brokers, topic_size))
    steps, size = Steps(), 0
    with path.open("wb") as file:
        for batch in steps.each(snapshot_batches(image, (), 0)):
            size += file.write(batch)
    return {"snapshot_mb": size / 1e6, "write": (steps.total, steps.longest)}


def load(path: Path, partitions: int) -> dict[str, object]:
    """Load the snapshot, and decide about the death of a broker."""
    data = path.read_bytes()
    before = resident_kib()
    began = time.process_time()
    snapshot = Snapshot(data)  # by a thread
    checked = time.process_time() - began
    loading, steps = Loading(SnapshotId(Offset(partitions), LeaderEpoch(1)), snapshot), Steps()
    steps.run(loading.steps())
    (image,) = steps.each(loading.image() for _ in range(1))
    found: dict[str, object] = {
        "load": (checked + steps.total, steps.longest),
        "bytes_each": (resident_kib() - before) * KIB / partitions,
    }
    return found | failover(image)


def failover(image: Image) -> dict[str, object]:
    """The decisions when one broker dies, each record encoded and replayed as the log does."""
    texts: dict[str, str] = {}
    configs = Configs(
        LogSettings.declared(), given=texts, node_id=NodeId(0), log=LogSettings.from_texts(texts)
    )
    dead = NodeId(1)
    departure, finding, steps = Departure({dead: image.brokers[dead].epoch}), Steps(), Steps()
    finding.run(departure.find(image))
    count = 0

    def step() -> Iterator[None]:
        nonlocal image, count
        while not departure.is_done:
            records = departure.step(configs, image)
            count += len(records)
            for record in records:
                encode(record)
            image = replayed(image, records)
            yield

    steps.run(step())
    began = time.process_time()
    last = fence(configs, image, (dead,))
    fencing = time.process_time() - began
    assert len(last) == 1, f"{len(last) - 1} partitions were forgotten"
    image = replayed(image, last)
    began = time.process_time()
    elect_leaderless(configs, image)
    scanning = time.process_time() - began
    began = time.process_time()
    balance(configs, image)
    balancing = time.process_time() - began
    return {
        "changed": count,
        "find": (finding.total, finding.longest),
        "leave": (steps.total, steps.longest),
        "fence": fencing,
        "leaderless": scanning,
        "balance": balancing,
    }


def measure(partitions: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("--write", "--load"):
            command = [sys.executable, "-m", "tools.bench_metadata", part, f"{folder}/snapshot"]
            command += ["--largest", str(partitions)]
            found |= json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="write a snapshot and print JSON (internal)")
    parser.add_argument("--load", type=Path, help="load a snapshot and print JSON (internal)")
    parser.add_argument("--largest", type=int, default=1_000_000, help="partitions at most")
    options = parser.parse_args()
    if options.write or options.load:
        size = next(size for size in SIZES if size[0] == options.largest)
        found = write(options.write, *size) if options.write else load(options.load, size[0])
        print(json.dumps(found))
        return
    print(
        "| partitions | brokers | bytes per partition | snapshot | written in (longest step) | loaded in "
        "(longest step) | partitions of the dead broker | found in | leave in (longest step) | fenced in "
        "| scan for partitions without a leader | for preferred leaders |"
    )
    print("|" + "---|" * 12)
    for partitions, brokers, _ in SIZES:
        if partitions > options.largest:
            continue
        row = measure(partitions)
        written, loaded, find, leave = (row[name] for name in ("write", "load", "find", "leave"))
        print(
            f"| {partitions:,} | {brokers:,} | {row['bytes_each']:.0f} | {row['snapshot_mb']:.1f} MB "
            f"| {written[0]:.2f} s ({ms(written[1])}) | {loaded[0]:.2f} s ({ms(loaded[1])}) "
            f"| {row['changed']:,} | {ms(find[0])} | {ms(leave[0])} ({ms(leave[1])}) "
            f"| {ms(row['fence'])} | {ms(row['leaderless'])} | {ms(row['balance'])} |",
            flush=True,
        )


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


if __name__ == "__main__":
    main()
