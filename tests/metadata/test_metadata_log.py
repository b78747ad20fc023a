"""The metadata log of one node: published metadata is durable, and a start finds all of it."""

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from riverrun.metadata.flushed import NAME as FLUSHED
from riverrun.metadata.flushed import FlushedOffset
from riverrun.metadata.image import Image
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.metadata.quorum import MetadataError, read_quorum_state
from riverrun.metadata.records import RemoveTopicRecord, encode
from riverrun.metadata.schema.begin_transaction_record import BeginTransactionRecord
from riverrun.metadata.settings import MetadataSettings
from riverrun.metadata.snapshot import Snapshot
from riverrun.model.ids import Offset, TopicName
from riverrun.model.invariants import InvariantViolation
from riverrun.ports.files import File, OsFiles
from riverrun.records.batch import batches
from riverrun.records.record import NewRecord, build_batch, read_records
from tests.metadata.opened import FixedClock, open_log, open_metadata, topic_records

TINY_SEGMENTS = MetadataSettings(segment_bytes=20_000)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@asynccontextmanager
async def running(log: MetadataLog) -> AsyncIterator[MetadataLog]:
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await log.stop()


class SyncGate(OsFiles):
    """Files whose fsyncs of the log wait for a signal, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.fails = False
        self.syncs = 0
        self.began = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def open(self, path: str, *, create: bool = False) -> Any:
        file = super().open(path, create=create)
        if not path.endswith(".log"):
            return file
        return _GatedFile(file, self)


class _GatedFile:
    def __init__(self, file: File, gate: SyncGate) -> None:
        self._file = file
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._gate.syncs += 1
        self._gate.loop.call_soon_threadsafe(self._gate.began.set)
        assert self._gate.may_sync.wait(10)
        if self._gate.fails:
            raise OSError(5, "Input/output error")
        self._file.sync()


def test_a_blank_directory_gets_its_first_files(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        assert log.current.features == {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "transaction.version": 2,
        }
        assert log.current.offset == log.end_offset - 1 == log.high_watermark - 1
        await log.stop()
        bootstrap = tmp_path / "00000000000000000000-0000000000.checkpoint"
        snapshot = Snapshot(bootstrap.read_bytes())
        assert snapshot.voters == log.voters
        state = read_quorum_state(OsFiles(), str(tmp_path))
        assert state is not None
        assert (state.epoch, state.leader) == (1, 1)

    run(main())


def test_each_start_leads_a_new_epoch_of_the_same_log(tmp_path: Path) -> None:
    async def main() -> None:
        epochs = []
        for number in range(1, 4):
            log = await open_metadata(OsFiles(), str(tmp_path))
            async with running(log):
                epochs.append(log.epoch)
                await log.append(topic_records(f"topic-{number}", number))
            image = log.current
        assert epochs == [1, 2, 3]
        again = await open_metadata(OsFiles(), str(tmp_path))
        await again.stop()
        assert list(again.current.topics_by_name) == ["topic-1", "topic-2", "topic-3"]
        assert again.current.topics_by_id == image.topics_by_id
        assert again.current.features == image.features
        assert again.current.offset == image.offset + 1, "a leader change and nothing else"

    run(main())


def test_nothing_is_published_before_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        files = SyncGate()
        log = await open_metadata(files, str(tmp_path))
        seen: list[Image] = []
        log.subscribe(lambda delta, image: seen.append(image))
        before = log.current
        async with running(log):
            files.may_sync.clear()
            files.began.clear()
            append = asyncio.ensure_future(log.append(topic_records("a", 1)))
            await files.began.wait()
            assert log.end_offset > before.offset + 1, "written, but not synced"
            assert not append.done()
            assert log.current is before
            assert seen == []
            files.may_sync.set()
            image = await append
            assert "a" in image.topics_by_name
            assert log.current is image
            assert seen == [image]

    run(main())


def test_concurrent_appends_share_an_fsync_and_are_published_in_order(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        files = SyncGate()
        log = await open_metadata(files, str(tmp_path))
        seen: list[int] = []
        log.subscribe(lambda delta, image: seen.append(len(image.topics_by_name)))
        async with running(log):
            before = files.syncs
            appends = [log.append(topic_records(f"t{n}", n)) for n in range(1, 51)]
            images = await asyncio.gather(*appends)
            assert [len(image.topics_by_name) for image in images] == list(range(1, 51))
            assert seen == list(range(1, 51))
            assert files.syncs - before <= 2

    run(main())


def test_a_failed_fsync_ends_run_and_fails_every_append(tmp_path: Path) -> None:
    async def main() -> None:
        files = SyncGate()
        log = await open_metadata(files, str(tmp_path))
        before = log.current
        files.fails = True
        task = asyncio.create_task(log.run())
        with pytest.raises(OSError, match="Input/output error"):
            await log.append(topic_records("a", 1))
        with pytest.raises(OSError, match="Input/output error"):
            await task
        files.fails = False
        with pytest.raises(OSError, match="Input/output error"):
            await log.append(topic_records("b", 2))
        assert log.current is before
        syncs = files.syncs
        await log.stop()
        assert files.syncs == syncs, "a failed sync is never tried again"

    run(main())


def test_an_fsync_failure_after_its_waiter_left_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        files = SyncGate()
        log = await open_metadata(files, str(tmp_path))
        before = log.current
        task = asyncio.create_task(log.run())
        files.may_sync.clear()
        files.began.clear()
        append = asyncio.ensure_future(log.append(topic_records("a", 1)))
        await files.began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        files.fails = True
        files.may_sync.set()
        syncs = files.syncs
        with pytest.raises(OSError, match="Input/output error"):
            await log.stop()
        with pytest.raises(OSError, match="Input/output error"):
            await append
        assert files.syncs == syncs
        assert log.current is before

    run(main())


def test_stop_waits_for_appended_records(tmp_path: Path) -> None:
    async def main() -> None:
        files = SyncGate()
        log = await open_metadata(files, str(tmp_path))
        task = asyncio.create_task(log.run())
        files.may_sync.clear()
        files.began.clear()
        append = asyncio.ensure_future(log.append(topic_records("a", 1)))
        await files.began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        files.may_sync.set()
        await log.stop()
        assert list((await append).topics_by_name) == ["a"]

    run(main())


def test_invalid_records_never_reach_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            await log.append(topic_records("a", 1))
            end = log.end_offset
            with pytest.raises(InvariantViolation, match="topic a exists"):
                await log.append(topic_records("a", 2))
            assert log.end_offset == end
            await log.append(topic_records("b", 2))
        again = await open_metadata(OsFiles(), str(tmp_path))
        await again.stop()
        assert list(again.current.topics_by_name) == ["a", "b"]

    run(main())


def test_a_cancelled_waiter_does_not_affect_others(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            leaving = asyncio.ensure_future(log.append(topic_records("a", 1)))
            await asyncio.sleep(0)
            leaving.cancel()
            image = await log.append(topic_records("b", 2))
            assert list(image.topics_by_name) == ["a", "b"]

    run(main())


def test_snapshots_replace_the_log_that_they_contain(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            for number in range(1, 5):
                await log.append(topic_records(f"t{number}", number))
                await log.append([RemoveTopicRecord(topic_id=UUID(int=number))])
                await log.snapshot()
            await log.append(topic_records("last", 999))
            image = log.current
        assert not _names(tmp_path, ".deleted")
        snapshots = _names(tmp_path, ".checkpoint")
        assert len(snapshots) == 2
        assert "00000000000000000000-0000000000.checkpoint" not in snapshots
        first = min(int(name[:20]) for name in _names(tmp_path, ".log"))
        assert 0 < first <= int(snapshots[0][:20])
        again = await open_metadata(OsFiles(), str(tmp_path))
        await again.stop()
        assert again.current.topics_by_id == image.topics_by_id
        assert again.voters == log.voters

    run(main())


def test_a_snapshot_is_due_when_the_log_outgrows_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a start replays no more than it loads, long before Kafka's 20 MiB."""
    monkeypatch.setattr("riverrun.metadata.snapshotter.EARLY_BYTES", 600)

    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        written: list[int] = []
        async with running(log), asyncio.timeout(20):
            for number in range(1, 200):
                await log.append(topic_records(f"t{number}", number))
                if log._snapshots._due.is_set():
                    await log.snapshot()
                    written.append(log.current.offset)
        assert len(written) >= 4
        steps = [new - old for old, new in itertools.pairwise([0, *written])]
        assert all(new >= 1.5 * old for old, new in itertools.pairwise(steps[1:])), steps

    run(main())


class NoteFiles(OsFiles):
    """Files that record the order of directory changes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if old.endswith(".log"):
            self.notes.append(f"drop {int(os.path.basename(old)[:20])}")

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if path.endswith(".log.deleted"):
            self.notes.append(f"remove {int(os.path.basename(path)[:20])}")

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.notes.append("sync")


def test_old_segments_are_deleted_one_by_one_durably(tmp_path: Path) -> None:
    async def main() -> None:
        files = NoteFiles()
        log = await open_metadata(files, str(tmp_path), settings=TINY_SEGMENTS)
        async with running(log):
            number = 0
            while len(_names(tmp_path, ".log")) < 4:
                number += 1
                await log.append(topic_records(f"t{number}", number, partitions=200))
            bases = [int(name[:20]) for name in _names(tmp_path, ".log")]
            await log.snapshot()
            files.notes.clear()
            await log.append(topic_records("x", 1_000_001))
            await log.snapshot()
        changes = [note for note in files.notes if note != "sync"]
        dropped = [f"drop {base}" for base in bases]
        removed = [f"remove {base}" for base in bases]
        assert changes == dropped + removed
        for note in dropped:
            assert files.notes[files.notes.index(note) + 1] == "sync"

    run(main())


def _names(path: Path, suffix: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(suffix))


def test_a_damaged_snapshot_is_skipped_for_the_previous_one(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            for number in range(1, 5):
                await log.append(topic_records(f"t{number}", number))
                await log.snapshot()
            await log.append(topic_records("last", 999))
            image = log.current
        newest = tmp_path / _names(tmp_path, ".checkpoint")[-1]
        damaged = bytearray(newest.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        newest.write_bytes(damaged)
        again = await open_metadata(OsFiles(), str(tmp_path))
        await again.stop()
        assert again.current.topics_by_id == image.topics_by_id

    run(main())


def test_a_log_that_lost_durable_records_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            await log.append(topic_records("a", 1))
        segment = tmp_path / "00000000000000000000.log"
        segment.write_bytes(segment.read_bytes()[:-5])
        with pytest.raises(MetadataError, match="acknowledged metadata is missing"):
            await open_metadata(OsFiles(), str(tmp_path))
        (tmp_path / FLUSHED).unlink()
        again = await open_metadata(OsFiles(), str(tmp_path))
        await again.stop()
        assert not again.current.topics_by_name

    run(main())


def test_a_torn_tail_that_was_never_durable_is_truncated(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            await log.append(topic_records("a", 1))
        segment = tmp_path / "00000000000000000000.log"
        segment.write_bytes(segment.read_bytes() + segment.read_bytes()[:40])
        again = await open_metadata(OsFiles(), str(tmp_path))
        await again.stop()
        assert list(again.current.topics_by_name) == ["a"]

    run(main())


def test_a_directory_of_another_node_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        await (await open_metadata(OsFiles(), str(tmp_path))).stop()
        with pytest.raises(MetadataError, match="voted on by 1, and this is node 2"):
            await open_metadata(OsFiles(), str(tmp_path), node_id=2)
        with pytest.raises(MetadataError, match="of different nodes"):
            await open_metadata(OsFiles(), str(tmp_path), directory_id=UUID(int=5))

    run(main())


def test_a_new_address_is_written_into_the_voters(tmp_path: Path) -> None:
    async def main() -> None:
        await (await open_metadata(OsFiles(), str(tmp_path))).stop()
        moved = await open_metadata(OsFiles(), str(tmp_path), port=9999)
        await moved.stop()
        again = await open_metadata(OsFiles(), str(tmp_path), port=9999)
        await again.stop()
        assert again.end_offset == moved.end_offset + 1, "not written again"
        assert again.voters[0].endpoints == {"CONTROLLER": ("127.0.0.1", 9999)}

    run(main())


@pytest.mark.parametrize("was_durable", [True, False])
def test_an_open_transaction_is_aborted_at_start(tmp_path: Path, was_durable: bool) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        await log.stop()
        store = open_log(OsFiles(), str(tmp_path), MetadataSettings(), FixedClock())
        open_transaction = [BeginTransactionRecord(name="torn"), *topic_records("a", 1)]
        records = [NewRecord(encode(record), timestamp=1) for record in open_transaction]
        store.append_as_follower(build_batch(records, base_offset=store.end_offset, leader_epoch=1))
        if was_durable:
            FlushedOffset(OsFiles(), str(tmp_path)).write(store.end_offset)
        store.close()
        again = await open_metadata(OsFiles(), str(tmp_path))
        async with running(again):
            assert not again.current.topics_by_name
            await again.append(topic_records("a", 2))
        third = await open_metadata(OsFiles(), str(tmp_path))
        await third.stop()
        assert third.current.topics_by_name[TopicName("a")].id == UUID(int=2)

    run(main())


class RewriteFiles(OsFiles):
    """Files that record which log writes were made and when they were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def open(self, path: str, *, create: bool = False) -> Any:
        file = super().open(path, create=create)
        return _NotedFile(file, self.notes) if path.endswith(".log") else file


class _NotedFile:
    def __init__(self, file: File, notes: list[str]) -> None:
        self._file = file
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, data: Any) -> None:
        self._notes.append(f"write {len(data)} at {position}")
        self._file.write_at(position, data)

    def sync(self) -> None:
        self._notes.append("sync")
        self._file.sync()


def test_unsynced_pages_are_rewritten_before_new_appends(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            await log.append(topic_records("a", 1))
        size = (tmp_path / "00000000000000000000.log").stat().st_size
        FlushedOffset(OsFiles(), str(tmp_path)).write(Offset(log.end_offset - 1))
        files = RewriteFiles()
        again = await open_metadata(files, str(tmp_path))
        await again.stop()
        assert files.notes[:2] == [f"write {size} at 0", "sync"]
        assert list(again.current.topics_by_name) == ["a"]
        files.notes.clear()
        third = await open_metadata(files, str(tmp_path))
        await third.stop()
        assert list(third.current.topics_by_name) == ["a"]
        assert not any(note.endswith(" at 0") for note in files.notes), "done once"

    run(main())


def test_the_records_of_one_append_are_one_batch(tmp_path: Path) -> None:
    async def main() -> None:
        log = await open_metadata(OsFiles(), str(tmp_path))
        async with running(log):
            start = log.end_offset
            await log.append(topic_records("a", 1, partitions=5))
        data = (tmp_path / "00000000000000000000.log").read_bytes()
        found = [(header, at) for at, header in batches(data) if header.base_offset >= start]
        assert [header.count for header, _ in found] == [6]
        header, at = found[0]
        assert header.leader_epoch == log.epoch
        assert len(read_records(data[at : at + header.size])) == 6

    run(main())


def test_settings_are_kafkas() -> None:
    declared = {setting.name: setting.default for setting in MetadataSettings.declared()}
    assert declared == {
        "metadata.log.segment.bytes": 1073741824,
        "metadata.log.segment.ms": 604800000,
        "metadata.log.max.record.bytes.between.snapshots": 20971520,
        "metadata.log.max.snapshot.interval.ms": 3600000,
    }
