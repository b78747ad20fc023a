"""Apache Kafka's dump tool reads the segments that a worker process compacted."""

import random
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.background.worker_pool import WorkerPool
from riverrun.storage.cleaning.cleaner import Cleaner
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.settings import CleanerSettings, LogSettings
from tests.peers import find_java, find_kafka, need

from .machines import end_transaction
from .test_cleaner import drive

PARTITION = TopicPartition(TopicName("t"), PartitionIndex(0))
EPOCH = LeaderEpoch(0)


def fill(log: Log, now_ms: int, sequences: dict[int, int]) -> None:
    """Batches of all codecs, idempotent and transactional ones, tombstones and headers."""
    chance = random.Random(7)
    for number in range(300):
        producer = chance.choice([-1, 1, 2])
        records = [
            NewRecord(
                chance.choice([None, b"v" * 80]),
                b"key-%d" % chance.randrange(200),
                now_ms + number * 10 + place,
                (("h", b"1"),),
            )
            for place in range(10)
        ]
        batch = build_batch(
            records,
            compression=chance.choice(list(Compression)),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequences.get(producer, -1),
            transactional=producer == 2,
        )
        log.append_as_leader(bytearray(batch), leader_epoch=EPOCH, now_ms=now_ms)
        if producer >= 0:
            sequences[producer] += 10
        if producer == 2:
            commit = chance.choice([True, False])
            end_transaction(log, 2, commit=commit, leader_epoch=EPOCH, now_ms=now_ms)
        log.advance_high_watermark(log.end_offset)


@pytest.mark.peer
def test_kafka_reads_compacted_segments(tmp_path: Path) -> None:
    kafka, java = need(find_kafka), need(find_java)
    clock, files = SystemClock(), OsFiles()
    directory = LogDirectory.open(
        files, str(tmp_path), node_id=NodeId(1), clock=clock, randomness=SystemRandomness()
    )
    settings = LogSettings(
        cleanup_policy=("compact",),
        segment_bytes=16_000,
        delete_retention_ms=0,
        min_cleanable_dirty_ratio=0.0,
        timestamp_after_max_ms=2**40,
    )
    log = directory.create(PARTITION, UUID(int=1000), settings)
    pool = WorkerPool(Metrics())
    cleaner = Cleaner(
        files,
        str(tmp_path),
        clock=clock,
        settings=CleanerSettings(),
        start_job=pool.compact,
        metrics=Metrics(),
        discard=lambda *_: None,
    )
    sequences = {1: 0, 2: 0}
    for _ in range(3):
        fill(log, clock.now_ms(), sequences)
        assert drive(cleaner.clean_once(directory.logs))
    job = log.begin_flush(whole=True, closing=True)
    assert job is not None
    job.run()
    log.flushed(job)
    assert len(log.segments) > 2
    pool.close()
    directory.close()
    paths = sorted(
        str(path)
        for path in (tmp_path / "t-0").iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    )
    done = subprocess.run(
        [
            java,
            "-cp",
            f"{kafka}/*",
            "org.apache.kafka.tools.DumpLogSegments",
            "--deep-iteration",
            "--files",
            ",".join(paths),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    error_words = (
        "mismatch",
        "Mismatch",
        "out of order",
        "isvalid: false",
        "not found",
        "Exception",
    )
    lines = (done.stdout + done.stderr).splitlines()
    errors = [line for line in lines if any(word in line for word in error_words)]
    assert not errors, errors[:5]
    assert done.stdout.count("Dumping") == len(paths)
    assert done.stdout.count("| offset:") > 100
