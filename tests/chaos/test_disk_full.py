"""A full disk: writes fail with KAFKA_STORAGE_ERROR, reads work, free space restores writes."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.differential.batches import batch, read_batches
from tests.differential.script import Script
from tests.differential.scripts.requests import (
    commit_fields,
    fetch_fields,
    offset_fetch_fields,
    produce_fields,
)
from tests.processes import Server, serve, until

pytestmark = pytest.mark.chaos
DISK_BYTES = 48 << 20
BALLAST_BYTES = 24 << 20
VALUE = bytes(range(256)) * 2000  # half a megabyte
ATTEMPTS_MAX = 200

Topic = tuple[str, str]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small tmpfs that can be filled without affecting other files."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("MISSING RIGHT: a full disk needs root to mount a small tmpfs")
    place = tmp_path / "small"
    place.mkdir()
    options = f"size={DISK_BYTES}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "riverrun-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"MISSING RIGHT: cannot mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.fixture
def server(small_disk: Path) -> Iterator[Server]:
    if os.environ.get("PEER") == "kafka":
        pytest.skip("Apache Kafka stops when its only disk is full")
    # A subfolder, because the server removes its folder before the file system is unmounted.
    with serve(small_disk / "node", {"log.segment.bytes": str(4 << 20)}) as running:
        running.wait_for_coordinator()
        yield running


def test_full_disk_fails_writes_only(server: Server, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    script = Script(server.address, "full", "newest")
    topic = ("filled", script.make_topic("filled"))
    acknowledged = _fill(script, topic)
    assert len(acknowledged) > 5, "the disk was full from the start"

    assert _read(script, topic) == acknowledged, "a full disk affects reads"
    assert _produce(script, topic, VALUE)[0] == "KAFKA_STORAGE_ERROR"
    assert server.is_running()

    ballast.unlink()
    code, offset = until(
        lambda: _produce_if_possible(script, topic), seconds=20, what="writes succeed again"
    )
    acknowledged.append(offset)
    for _ in range(5):
        code, offset = _produce(script, topic, VALUE)
        assert code == "NONE"
        acknowledged.append(offset)
    assert _read(script, topic) == acknowledged
    script.close()

    server.kill(signal.SIGKILL)
    server.restart()
    script = Script(server.address, "full", "newest")
    script.wait_for_topic("filled")
    assert _read(script, topic) == acknowledged, "an acknowledged record is lost after a restart"
    assert "Traceback" not in server.logs(), server.logs()
    script.close()


def test_commits_fail_on_a_full_disk_and_work_again_afterwards(
    server: Server, small_disk: Path
) -> None:
    """A commit that cannot be stored fails, and no stored commit is lost."""
    script = Script(server.address, "full", "newest")
    topic = ("filled", script.make_topic("filled"))
    groups = [f"group-{number}" for number in range(20)]
    for group in groups:
        assert _commit(script, topic, group, 1) == "NONE"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    _fill(script, topic)
    with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass
    codes = {group: _commit(script, topic, group, 2) for group in groups}
    assert set(codes.values()) <= {"NONE", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"}, codes
    assert server.is_running(), server.logs()
    assert script.quietly("metadata", {"topics": None})["brokers"]

    ballast.unlink()
    for group in groups:
        stored = until(partial(_committed, script, topic, group), seconds=20, what="offsets")
        assert stored == 2 if codes[group] == "NONE" else stored in (1, 2), codes[group]
        until(
            partial(_can_commit, script, topic, group, 3),
            seconds=20,
            what="commits succeed again",
        )
    script.close()


def _commit(script: Script, topic: Topic, group: str, offset: int) -> str:
    rows: list[tuple[Topic, int, int, str | None]] = [(topic, 0, offset, "x" * 4000)]
    response = script.quietly("offset_commit", commit_fields(group, rows))
    return str(response["topics"][0]["partitions"][0]["error_code"])


def _can_commit(script: Script, topic: Topic, group: str, offset: int) -> bool:
    return _commit(script, topic, group, offset) == "NONE"


def _committed(script: Script, topic: Topic, group: str) -> int | None:
    response = script.quietly("offset_fetch", offset_fetch_fields([(group, [(topic, [0])])]))
    found = response["groups"][0]
    if found["error_code"] != "NONE":
        return None
    return int(found["topics"][0]["partitions"][0]["committed_offset"])


def _fill(script: Script, topic: Topic) -> list[int]:
    """Write until the disk is full; return the acknowledged offsets."""
    acknowledged: list[int] = []
    for _ in range(ATTEMPTS_MAX):
        code, offset = _produce(script, topic, VALUE)
        if code != "NONE":
            assert code == "KAFKA_STORAGE_ERROR", code
            return acknowledged
        acknowledged.append(offset)
    raise AssertionError(f"the disk holds more than {ATTEMPTS_MAX} large batches")


def _produce_if_possible(script: Script, topic: Topic) -> tuple[str, int] | None:
    code, offset = _produce(script, topic, VALUE)
    return (code, offset) if code == "NONE" else None


def _produce(script: Script, topic: Topic, value: bytes) -> tuple[str, int]:
    response = script.quietly("produce", produce_fields([(topic, [(0, batch([value]))])]))
    row = response["responses"][0]["partition_responses"][0]
    return row["error_code"], row["base_offset"]


def _read(script: Script, topic: Topic) -> list[int]:
    found: list[int] = []
    while True:
        row = {"partition": 0, "fetch_offset": len(found)}
        response = script.quietly("fetch", fetch_fields([(topic, [row])], max_bytes=2 << 20))
        partition = response["responses"][0]["partitions"][0]
        assert partition["error_code"] == "NONE", partition
        batches = read_batches(partition["records"] or b"")
        if not batches:
            return found
        found += [int(row["offsets"].split("..")[0]) for row in batches]
