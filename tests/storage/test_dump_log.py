"""Apache Kafka's dump tool reads all our files without an error."""

import os
import subprocess
from pathlib import Path

import pytest

from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.randomness import SystemRandomness
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.settings import LogSettings
from tests.peers import find_java, find_kafka, need

from .machines import PARTITION, TOPIC_ID, batch, end_transaction, flush, stop_cleanly

ERROR_WORDS = ("Exception", "ERROR", "isvalid: false", "Found", "mismatch", "corrupt", "Mismatch")


def dump(*paths: str) -> str:
    libraries = need(find_kafka)
    command = [
        need(find_java),
        "-Xmx256m",
        "-cp",
        f"{libraries}/*",
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--files",
        ",".join(paths),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for word in ERROR_WORDS:
        assert word not in output, output
    return output


def opened(path: Path) -> LogDirectory:
    return LogDirectory.open(
        OsFiles(),
        str(path),
        node_id=NodeId(1),
        clock=SystemClock(),
        randomness=SystemRandomness(),
    )


def fill(log: Log) -> None:
    """Batches of every kind: codecs, epochs, a transaction and its marker."""
    now_ms = SystemClock().now_ms()
    for number in range(60):
        codec = Compression(number % 5)
        records = [
            NewRecord(b"value %d" % number * 20, key=b"key", timestamp=now_ms - 90 + number + delta)
            for delta in range(3)
        ]
        log.append_as_leader(
            bytearray(
                build_batch(
                    records,
                    compression=codec,
                    producer_id=7,
                    producer_epoch=1,
                    base_sequence=3 * number,
                )
            ),
            leader_epoch=LeaderEpoch(number // 20),
            now_ms=now_ms,
        )
    log.append_as_leader(
        batch(b"t", producer=8, sequence=0, transactional=True),
        leader_epoch=LeaderEpoch(3),
        now_ms=now_ms,
    )
    end_transaction(log, 8, commit=False, leader_epoch=LeaderEpoch(3), now_ms=now_ms)
    log.advance_high_watermark(log.end_offset)


@pytest.mark.peer
def test_kafka_reads_all_files_of_a_running_and_of_a_stopped_log(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4000, index_interval_bytes=300)
    directory = opened(tmp_path)
    log = directory.create(PARTITION, TOPIC_ID, settings)
    fill(log)
    flush(log, whole=True)
    fresh = batch(b"after the flush")
    append_in_epoch(log, fresh)
    running = dump(*_files(log.path))
    assert "producerId: 7" in running
    stop_cleanly(directory)
    stopped = dump(*_files(log.path))
    assert stopped.count("baseOffset:") == 63
    assert "lastSequence: 179" in stopped or "lastSeq" in stopped
    directory = opened(tmp_path)
    (log,) = directory.load(lambda _: settings)
    log.truncate_to(100)
    append_in_epoch(log, batch(b"after the truncation"))
    dump(*_files(log.path))
    directory.close()


def append_in_epoch(log: Log, data: bytearray) -> None:
    now_ms = SystemClock().now_ms()
    log.append_as_leader(data, leader_epoch=LeaderEpoch(5), now_ms=now_ms)


def _files(path: str) -> list[str]:
    """The files that the tool reads. It fails on empty indexes."""
    names = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    return [
        os.path.join(path, name)
        for name in sorted(os.listdir(path))
        if name.endswith(names)
        and (os.path.getsize(os.path.join(path, name)) or name.endswith(".log"))
    ]
