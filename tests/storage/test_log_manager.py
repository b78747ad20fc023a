"""The log manager: group commit, periodic tasks, a full or failing disk, the clean stop."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset, PartitionIndex, TopicPartition
from riverrun.ports.metrics import Metrics
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.checkpoints import CLEANER_OFFSETS, RECOVERY_POINTS, read_offsets
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.log_manager import LogManager
from riverrun.storage.segment.reader import ColdRead
from riverrun.storage.settings import DirectorySettings, LogSettings

from .machines import (
    DATA,
    EPOCH,
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    Machine,
    append,
    batch,
    read_all,
    values_of,
)
from .virtual_loop import VirtualLoop, run


class Node:
    """A directory and its manager on a machine."""

    def __init__(
        self,
        machine: Machine,
        settings: LogSettings | None = None,
        directory_settings: DirectorySettings | None = None,
    ) -> None:
        self.machine = machine
        self.settings = settings or LogSettings()
        self.directory: LogDirectory = machine.start(directory_settings)
        self.manager = LogManager(self.directory, clock=machine.clock, metrics=Metrics())

    async def start(self) -> Log:
        await self.manager.recover(lambda _: self.settings)
        if PARTITION in self.directory.logs:
            return self.directory.logs[PARTITION]
        return self.directory.create(PARTITION, TOPIC_ID, self.settings)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.manager.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def append_only(log: Log, value: bytes = b"value") -> int:
    appended = log.append_as_leader(batch(value), leader_epoch=EPOCH, now_ms=NOW_MS)
    return appended.last_offset + 1


def test_waiting_producers_share_a_sync() -> None:
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        loop.is_holding = True
        first = asyncio.create_task(node.manager.flushed(log, append_only(log)))
        await asyncio.sleep(0)
        waiting = [
            asyncio.create_task(node.manager.flushed(log, append_only(log))) for _ in range(10)
        ]
        await asyncio.sleep(0)
        assert len(loop.held) == 1, "one sync at a time"
        loop.release()
        await asyncio.sleep(0.001)
        assert first.done()
        assert not any(task.done() for task in waiting), "appended after the sync started"
        assert log.flushed_offset == 1
        assert len(loop.held) == 1, "one sync for all of them"
        loop.release()
        await asyncio.gather(*waiting)
        assert log.flushed_offset == 11
        await node.manager.flushed(log, 11)
        assert not loop.held, "durable records need no sync"

    run(machine.clock, story)


def test_failed_sync_is_never_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        machine.disk.syncs_to_fail = 1
        end = append_only(log)
        with pytest.raises(KafkaError) as refused:
            await node.manager.flushed(log, end)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.directory.is_offline
        assert log.flushed_offset == 0
        operations: list[str] = []
        monkeypatch.setattr(machine.disk.world, "record", operations.append)
        with pytest.raises(KafkaError):
            await node.manager.flushed(log, end)
        with pytest.raises(KafkaError):
            append_only(log)
        await node.manager.stop()
        assert not [line for line in operations if "sync" in line or "write" in line]
        assert not machine.files.exists(f"{DATA}/.kafka_cleanshutdown")

    run(machine.clock, story)


def test_full_disk_rejects_appends_until_it_has_space() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        async with node.running():
            append(log, batch(b"a"))
            machine.disk.capacity_bytes = machine.disk.used_bytes
            with pytest.raises(OSError, match="No space"):
                append(log, batch(b"b"))
            await asyncio.sleep(5)
            assert not node.directory.is_offline
            assert read_all(log) == [(0, b"a")]
            machine.disk.capacity_bytes += 100_000
            await asyncio.sleep(5)
            append(log, batch(b"b"))
            assert read_all(log) == [(0, b"a"), (1, b"b")]
        await node.manager.stop()
        node.directory.close()
        assert machine.start().was_clean

    run(machine.clock, story)


def test_broken_disk_takes_the_directory_offline() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        async with node.running():
            await asyncio.sleep(2)
            machine.disk.writes_to_fail = 1
            with pytest.raises(OSError, match="Input/output"):
                append_only(log)
            assert node.directory.is_offline

    run(machine.clock, story)


def test_closing_a_segment_moves_the_recovery_point() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine, LogSettings(segment_bytes=200))
        log = await node.start()
        async with node.running():
            await asyncio.sleep(1.5)
            for _ in range(5):
                append(log, batch(bytes(100)))
            assert log.recovery_point == 0
            await asyncio.sleep(2)
            assert log.recovery_point == 5
        machine.lose_power()
        _, log = machine.load(LogSettings(segment_bytes=200))
        assert log.end_offset == 5
        assert log.recovery_point == 5, "the checkpoint was written too"

    run(machine.clock, story)


def test_records_that_a_crash_left_unflushed_are_flushed_after_recovery() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        log = await Node(machine).start()
        append(log, batch(b"a", producer=7, sequence=0))
        machine.kill()
        node = Node(machine)
        log = await node.start()
        assert (log.recovery_point, log.end_offset) == (0, 1)
        async with node.running():
            await asyncio.sleep(2)
        assert log.recovery_point == 1
        assert f"{1:020d}.snapshot" in machine.files.list_directory(log.path)
        machine.kill()
        assert (await Node(machine).start()).recovery_point == 1, "the checkpoint was written"

    run(machine.clock, story)


def test_truncation_fails_if_the_compacted_offset_cannot_be_lowered() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        for _ in range(10):
            append(log, batch(b"old"))
        log.settings = LogSettings(cleanup_policy=("compact",))
        log.cleaned_to = Offset(8)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.directory.files, "rename", full)
            with pytest.raises(KafkaError) as failed:
                await node.manager.truncate(log, 5)
        assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert log.end_offset == 10
        assert await node.manager.truncate(log, 5)
        assert log.end_offset == 5
        assert read_offsets(machine.files, DATA, CLEANER_OFFSETS)[PARTITION] == 5

    run(machine.clock, story)


def test_flush_that_ends_before_a_truncation_does_not_leave_its_recovery_point() -> None:
    """A flush ends just before the truncation, and a checkpoint notes the end that it reached."""
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        log = await Node(machine).start()
        for _ in range(10):
            append(log, batch(b"old"))
        machine.kill()
        node = Node(machine)
        log = await node.start()
        loop.is_holding = True
        flushing = asyncio.create_task(node.manager._flush(log, whole=True))

        async def checkpoint() -> None:
            await node.manager.flushed(log, 10)
            await node.manager.checkpoint(RECOVERY_POINTS)

        checkpointing = asyncio.create_task(checkpoint())
        await asyncio.sleep(0)
        truncating = asyncio.create_task(node.manager.truncate(log, 5))
        await asyncio.sleep(0)
        loop.is_holding = False
        loop.release()
        await asyncio.gather(flushing, checkpointing, truncating)
        assert log.end_offset == 5
        assert read_offsets(machine.files, DATA, RECOVERY_POINTS)[PARTITION] <= 5
        for _ in range(5):
            append(log, batch(b"new"))
        machine.lose_power()
        recovered = await Node(machine).start()
        assert recovered.damage is None, "records that were never flushed are no loss"

    run(machine.clock, story)


def test_largest_logs_are_synced_above_the_limit_of_unsynced_bytes() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine, None, DirectorySettings(unflushed_bytes_max=5000))
        large = await node.start()
        partition = TopicPartition(PARTITION.topic, PartitionIndex(1))
        small = node.directory.create(partition, TOPIC_ID, node.settings)
        async with node.running():
            await asyncio.sleep(1.5)
            for _ in range(5):
                append(large, batch(bytes(2000)))
            append(small, batch(bytes(100)))
            await asyncio.sleep(1.5)
            assert large.recovery_point == 5
            assert small.recovery_point == 0

    run(machine.clock, story)


def test_flush_messages_and_flush_ms_trigger_a_sync() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine, LogSettings(flush_messages=3))
        by_count = await node.start()
        partition = TopicPartition(PARTITION.topic, PartitionIndex(1))
        by_time = node.directory.create(partition, TOPIC_ID, LogSettings(flush_ms=10_000))
        async with node.running():
            await asyncio.sleep(1.5)
            for log in (by_count, by_time):
                append(log, batch(b"a"))
                append(log, batch(b"a"))
            await asyncio.sleep(2)
            assert (by_count.flushed_offset, by_time.flushed_offset) == (0, 0)
            append(by_count, batch(b"a"))
            await asyncio.sleep(2)
            assert by_count.flushed_offset == 3
            await asyncio.sleep(10)
            assert by_time.flushed_offset == 2

    run(machine.clock, story)


def test_retention_removes_files_after_their_delay() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        settings = LogSettings(segment_bytes=200, retention_ms=100_000)
        node = Node(machine, settings)
        log = await node.start()
        for _ in range(5):
            append(log, batch(bytes(100)))
        async with node.running():
            await asyncio.sleep(50)
            assert log.start_offset == 0
            await asyncio.sleep(301)
            assert log.start_offset == 5
            names = machine.files.list_directory(log.path)
            assert any(name.endswith(".deleted") for name in names)
            await asyncio.sleep(62)
            names = machine.files.list_directory(log.path)
            assert not any(name.endswith(".deleted") for name in names)

    run(machine.clock, story)


def test_idle_producers_expire() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine, None, DirectorySettings(producer_expiration_ms=3_600_000))
        log = await node.start()
        append(log, batch(b"a", producer=7, sequence=0))
        async with node.running():
            await asyncio.sleep(3000)
            assert 7 in log.producers.entries
            await asyncio.sleep(1300)
            assert 7 not in log.producers.entries

    run(machine.clock, story)


def test_clean_stop_makes_everything_durable() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        metadata = node.directory.open_metadata(LogSettings())
        for _ in range(10):
            append(log, batch(b"a", producer=3, sequence=log.end_offset))
            append(metadata, batch(b"m"))
        await node.manager.stop(broker_epoch=9)
        node.directory.close()
        machine.lose_power()
        node = Node(machine)
        assert node.directory.was_clean
        assert node.directory.previous_broker_epoch == 9
        log = await node.start()
        assert (log.end_offset, log.recovery_point, log.high_watermark) == (10, 10, 10)
        assert log.producers.entries[3].last_sequence == 9
        assert node.directory.open_metadata(LogSettings()).end_offset == 10

    run(machine.clock, story)


def create_many(node: Node, count: int) -> list[TopicPartition]:
    names = [TopicPartition(PARTITION.topic, PartitionIndex(100 + n)) for n in range(count)]
    for name in names:
        node.directory.create(name, TOPIC_ID, node.settings)
    return names


def count_syncs(machine: Machine, monkeypatch: pytest.MonkeyPatch, path: str) -> list[str]:
    synced: list[str] = []
    sync = machine.files.sync_directory

    def count(directory: str) -> None:
        if directory == path:
            synced.append(directory)
        sync(directory)

    monkeypatch.setattr(machine.files, "sync_directory", count)
    return synced


@pytest.mark.parametrize("is_stopped", [True, False], ids=["by a stop", "in the background"])
def test_names_of_new_logs_share_a_sync(is_stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        await node.start()
        names = create_many(node, 20)
        synced = count_syncs(machine, monkeypatch, DATA)
        if is_stopped:
            await node.manager._flush_all(
                node.directory.logs.values(), whole=True, closing=True, shares_names=True
            )
        else:
            async with node.running():
                await asyncio.sleep(1.5)
        assert len(synced) == 1
        machine.lose_power()
        node = Node(machine)
        await node.start()
        assert {name: node.directory.logs[name].topic_id for name in names} == dict.fromkeys(
            names, TOPIC_ID
        )

    run(machine.clock, story)


def test_failed_sync_of_names_takes_the_directory_offline() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        await node.start()
        create_many(node, 2)
        machine.disk.syncs_to_fail = 1
        await node.manager.stop()
        assert node.directory.is_offline
        assert not machine.files.exists(f"{DATA}/.kafka_cleanshutdown")

    run(machine.clock, story)


def test_unclean_stop_writes_no_marker() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        await node.start()
        await node.manager.stop(clean=False)
        assert not machine.files.exists(f"{DATA}/.kafka_cleanshutdown")

    run(machine.clock, story)


@pytest.mark.parametrize("was_clean", [True, False])
def test_stop_before_recovery_keeps_checkpoints_and_marker(was_clean: bool) -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        for _ in range(10):
            append(log, batch(b"a"))
        log.advance_high_watermark(log.end_offset)
        log.delete_records_before(4)
        await node.manager.stop(clean=True, broker_epoch=9)
        if not was_clean:
            machine.files.unlink(f"{DATA}/.kafka_cleanshutdown")
        node.directory.close()

        waiting = Node(machine)
        await waiting.manager.stop(broker_epoch=-1)
        waiting.directory.close()

        node = Node(machine)
        assert node.directory.was_clean is was_clean, "the logs were not opened since"
        assert node.directory.previous_broker_epoch == (9 if was_clean else None)
        log = await node.start()
        assert (log.start_offset, log.recovery_point, log.high_watermark) == (4, 10, 10)

    run(machine.clock, story)


def test_truncation_lowers_the_recovery_point_on_disk_first() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        for _ in range(10):
            append(log, batch(b"a"))
        await node.manager.flushed(log, 10)
        await node.manager.stop()
        await node.manager.truncate(log, 4)
        append(log, batch(b"other"))
        machine.kill()
        machine.files.unlink(f"{DATA}/.kafka_cleanshutdown")
        _, log = machine.load(LogSettings())
        assert log.end_offset == 5
        assert not log.is_corrupt

    run(machine.clock, story)


COMPACT = LogSettings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)


def fill_segments(log: Log) -> None:
    """Four segments with the same five keys, and an active one."""
    for number in range(4):
        for key in range(5):
            append(log, keyed(b"k%d" % key, b"v%d" % number))
        log.roll(NOW_MS)
    append(log, keyed(b"active", b"v"))


def keyed(key: bytes, value: bytes) -> bytearray:
    record = NewRecord(value, key, NOW_MS)
    return bytearray(build_batch([record], producer_id=-1, producer_epoch=-1, base_sequence=-1))


def test_truncation_within_a_batch_lowers_the_recovery_point_to_its_start() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        for _ in range(3):
            append(log, batch(b"a", b"b", b"c"))
        await node.manager._flush(log, whole=True)
        await node.manager.truncate(log, 5)
        assert log.end_offset == 3
        assert read_offsets(machine.files, DATA, RECOVERY_POINTS)[PARTITION] == 3

    run(machine.clock, story)


def test_truncation_into_a_gap_lowers_the_checkpoints_to_the_new_end() -> None:
    """Of the compacted records, only those from 15 on are left."""
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine, COMPACT)
        log = await node.start()
        fill_segments(log)
        await node.manager._drive(node.manager._cleaner.clean_once(node.directory.logs))
        await node.manager._flush(log, whole=True)
        await node.manager.checkpoint()
        assert (log.cleaned_to, log.recovery_point) == (20, 21)
        await node.manager.truncate(log, 12)
        assert log.end_offset == 0
        assert read_offsets(machine.files, DATA, CLEANER_OFFSETS)[PARTITION] == 0
        assert read_offsets(machine.files, DATA, RECOVERY_POINTS)[PARTITION] == 0
        for _ in range(13):
            append(log, keyed(b"k0", b"new"))
        machine.lose_power()
        recovered = await Node(machine, COMPACT).start()
        assert recovered.end_offset == 13
        assert recovered.cleaned_to == 0, "the new records were not compacted"
        assert recovered.damage is None

    run(machine.clock, story)


def test_swap_of_truncated_segments_is_not_completed_after_a_crash() -> None:
    """The cleaner's thread marks a new segment as complete while a truncation is requested."""
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        node = Node(machine, COMPACT)
        log = await node.start()
        fill_segments(log)
        manager = node.manager
        await manager._flush(log, whole=True)
        loop.is_holding = True
        steps = manager._cleaner.clean_once(node.directory.logs)
        cleaning = asyncio.create_task(manager._drive(steps))
        await asyncio.sleep(0)
        loop.release()
        await asyncio.sleep(0.1)
        (complete,) = loop.held
        loop.is_holding = False

        async def replace() -> None:
            await manager.truncate(log, 17)
            for _ in range(3):
                append(log, keyed(b"k0", b"new"))
            await manager.flushed(log, log.end_offset)

        replacing = asyncio.create_task(replace())
        await asyncio.wait([replacing], timeout=1)
        complete()
        await replacing
        records = read_all(log)
        assert [value for _, value in records[-3:]] == [b"new"] * 3
        machine.lose_power()
        recovered = await Node(machine, COMPACT).start()
        recovered.advance_high_watermark(recovered.end_offset)
        assert recovered.damage is None
        assert read_all(recovered) == records
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)

    run(machine.clock, story)


def test_cold_data_is_read_in_a_thread() -> None:
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        for value in (b"a", b"b"):
            append(log, batch(value))
        machine.disk.evict()
        cold = log.read(0, max_bytes=1000, end=2)
        assert isinstance(cold, ColdRead)
        found = await node.manager.load(cold)
        assert values_of(found.data) == [(0, b"a"), (1, b"b")]
        assert not isinstance(log.read(0, max_bytes=1000, end=2), ColdRead), "it is warm now"

    run(machine.clock, story)


def test_deleting_a_log_during_a_flush_keeps_the_directory_online() -> None:
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        node = Node(machine)
        log = await node.start()
        loop.is_holding = True
        waiting = asyncio.create_task(node.manager.flushed(log, append_only(log)))
        await asyncio.sleep(0)
        node.directory.delete(PARTITION)
        loop.release()
        loop.is_holding = False
        with pytest.raises(KafkaError):
            await waiting
        assert not node.directory.is_offline
        async with node.running():
            await asyncio.sleep(2)
        assert machine.files.list_directory(DATA) == [".lock", "meta.properties"]

    run(machine.clock, story)


def test_removal_that_the_disk_refused_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    unlink = machine.files.unlink

    def refuse(path: str) -> None:
        raise OSError(errno.EBUSY, path)

    async def story(_loop: VirtualLoop) -> None:
        node = Node(machine)
        await node.start()
        node.directory.delete(PARTITION)
        monkeypatch.setattr(machine.files, "unlink", refuse)
        async with node.running():
            await asyncio.sleep(3)
            assert [name for name in machine.files.list_directory(DATA) if "-delete" in name]
            monkeypatch.setattr(machine.files, "unlink", unlink)
            await asyncio.sleep(2)
        assert machine.files.list_directory(DATA) == [".lock", "meta.properties"]

    run(machine.clock, story)


def test_recovery_raises_the_error_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()

    async def first_run(_loop: VirtualLoop) -> None:
        node = Node(machine)
        append_only(await node.start())
        await node.manager.stop()
        node.directory.close()

    async def second_run(_loop: VirtualLoop) -> None:
        node = Node(machine)

        def fail(_partition: TopicPartition, _settings: LogSettings) -> Log:
            raise OSError(5, "the disk is gone")

        monkeypatch.setattr(node.directory, "open_log", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            await node.start()

    run(machine.clock, first_run)
    run(machine.clock, second_run)


def test_stop_during_recovery_waits_for_the_log_that_a_thread_repairs() -> None:
    """The thread changes files. The lock of the directory must not be free meanwhile."""
    machine = Machine()
    logs = 40

    async def first_run(_loop: VirtualLoop) -> None:
        node = Node(machine)
        await node.start()
        for index in range(logs):
            node.directory.create(
                TopicPartition(PARTITION.topic, PartitionIndex(index + 1)), TOPIC_ID, node.settings
            )
        machine.kill()

    async def second_run(loop: VirtualLoop) -> None:
        node = Node(machine)
        loop.is_holding = True
        starting = asyncio.create_task(node.start())
        for _ in range(3):  # the search for logs, and the first logs of each thread
            await asyncio.sleep(0.001)
            loop.release()
        await asyncio.sleep(0.001)
        assert node.directory.logs
        starting.cancel()
        await asyncio.sleep(1)
        assert not starting.done(), "a thread is at work"
        loop.is_holding = False
        loop.release()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert len(node.directory.logs) < logs, "it skips the logs that it has not begun"

    run(machine.clock, first_run)
    run(machine.clock, second_run)
