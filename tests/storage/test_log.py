"""The rules of a log for producers and consumers, without failures of the disk."""

from functools import partial

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, PartitionIndex, TopicPartition
from riverrun.model.invariants import InvariantViolation
from riverrun.records.batch import read_header
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.log import Log
from riverrun.storage.segment.index import OffsetIndex
from riverrun.storage.segment.reader import ColdRead, Slice
from riverrun.storage.settings import DirectorySettings, LogSettings

from .machines import (
    EPOCH,
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    Machine,
    append,
    batch,
    end_transaction,
    flush,
    read,
    read_all,
    refusal,
    stop_cleanly,
    values_of,
)


def log_of(**settings: object) -> Log:
    machine = Machine()
    return machine.load(LogSettings(**settings))[1]  # type: ignore[arg-type]


def test_append_assigns_consecutive_offsets_and_the_epoch() -> None:
    log = log_of()
    assert append(log, batch(b"a", b"b")).base_offset == 0
    appended = append(log, batch(b"c"))
    assert (appended.base_offset, appended.last_offset) == (2, 2)
    header = read_header(read(log, 2).data)
    assert (header.base_offset, header.leader_epoch) == (2, EPOCH)


def test_read_within_a_batch_returns_the_whole_batch() -> None:
    log = log_of()
    append(log, batch(b"a", b"b", b"c"))
    assert values_of(read(log, 1).data) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_read_returns_nothing_above_its_end() -> None:
    log = log_of()
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    assert values_of(read(log, 0, end=2).data) == [(0, b"a"), (1, b"b")]
    assert not read(log, 2, end=2).data


def test_read_returns_one_batch_above_the_limit_only_if_required() -> None:
    log = log_of()
    append(log, batch(bytes(1000)))
    append(log, batch(bytes(1000)))
    assert len(values_of(read(log, 0, max_bytes=10).data)) == 1
    found = log.read(0, max_bytes=10, end=2, at_least_one=False)
    assert isinstance(found, Slice)
    assert not found.data


def test_read_stays_within_its_limit() -> None:
    log = log_of()
    for _ in range(50):
        append(log, batch(bytes(300)))
    for limit in range(400, 4000, 97):
        data = read(log, 3, max_bytes=limit).data
        assert 0 < len(data) <= limit
        assert len(data) + 400 > limit


def test_read_outside_the_log_is_rejected() -> None:
    log = log_of()
    append(log, batch(b"a"))
    log.delete_records_before(1)
    for offset in (0, 2):
        error = refusal(partial(log.read, offset, max_bytes=1, end=1))
        assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not read(log, 1).data


def test_reads_continue_across_segments_that_rolled_by_size() -> None:
    log = log_of(segment_bytes=1000)
    for number in range(40):
        append(log, batch(b"%d" % number, bytes(100)))
    assert len(log.segments) > 5
    expected = [(i, b"%d" % (i // 2) if i % 2 == 0 else bytes(100)) for i in range(80)]
    for limit in (1, 500, 10_000):
        assert read_all(log, max_bytes=limit) == expected


def test_segments_roll_by_the_age_of_their_records() -> None:
    log = log_of(segment_ms=1000)
    append(log, batch(b"a"))
    append(log, batch(b"b", timestamp=NOW_MS + 1000))
    assert len(log.segments) == 1
    append(log, batch(b"c", timestamp=NOW_MS + 1001))
    assert len(log.segments) == 2
    log.roll_if_due(NOW_MS + 2002)
    assert len(log.segments) == 3
    log.roll_if_due(NOW_MS + 9000)
    assert len(log.segments) == 3, "an empty segment has no age"


def test_segments_roll_before_an_index_overflows() -> None:
    log = log_of(segment_index_bytes=64, index_interval_bytes=0)
    for _ in range(40):
        append(log, batch(b"a"))
    assert len(log.segments) > 4
    assert read_all(log) == [(offset, b"a") for offset in range(40)]


def test_log_append_time_replaces_the_timestamp_of_the_producer() -> None:
    log = log_of(timestamp_type="LogAppendTime")
    appended = append(log, batch(b"a", timestamp=5), NOW_MS + 7)
    assert appended.append_time_ms == NOW_MS + 7
    assert read_header(read(log, 0).data).max_timestamp == NOW_MS + 7
    assert log.segments[0].max_timestamp == NOW_MS + 7


def test_changed_settings_apply_to_the_next_append() -> None:
    log = log_of()
    log.configure(LogSettings(max_message_bytes=100))
    error = refusal(lambda: append(log, batch(bytes(200))))
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.end_offset == 0


def test_append_of_an_older_epoch_violates_an_invariant() -> None:
    log = log_of()
    log.begin_epoch(LeaderEpoch(EPOCH + 1))
    with pytest.raises(InvariantViolation):
        append(log, batch(b"a"))


def test_duplicate_returns_the_original_offset_and_is_not_written() -> None:
    log = log_of()
    for sequence in range(5):
        append(log, batch(b"a", producer=9, sequence=sequence))
    for sequence in range(5):
        appended = append(log, batch(b"a", producer=9, sequence=sequence))
        assert appended.is_duplicate
        assert appended.base_offset == sequence
    assert log.end_offset == 5


def test_failed_write_changes_nothing() -> None:
    machine = Machine()
    _, log = machine.load(LogSettings())
    append(log, batch(b"a", producer=9, sequence=0))
    before = (log.end_offset, log.size_bytes, log.segments.active.size)
    machine.disk.capacity_bytes = machine.disk.used_bytes + 10
    with pytest.raises(OSError, match="No space"):
        append(log, batch(b"b", producer=9, sequence=1))
    assert (log.end_offset, log.size_bytes, log.segments.active.size) == before
    machine.disk.capacity_bytes += 10_000
    assert append(log, batch(b"b", producer=9, sequence=1)).base_offset == 1
    assert read_all(log) == [(0, b"a"), (1, b"b")]


def test_full_disk_during_a_roll_changes_nothing() -> None:
    machine = Machine()
    _, log = machine.load(LogSettings(segment_bytes=100))
    append(log, batch(b"a"))
    machine.disk.capacity_bytes = machine.disk.used_bytes
    with pytest.raises(OSError, match="No space"):
        append(log, batch(b"b"))
    assert len(log.segments) == 1
    machine.disk.capacity_bytes += 10_000
    append(log, batch(b"b"))
    assert read_all(log) == [(0, b"a"), (1, b"b")]


def test_follower_appends_batches_unchanged() -> None:
    leader, follower = log_of(), log_of()
    for sequence in range(3):
        append(leader, batch(b"a", b"b", producer=4, sequence=2 * sequence))
    data = read(leader, 0).data
    follower.append_as_follower(data)
    assert follower.end_offset == 6
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.producers.entries[4].batches == leader.producers.entries[4].batches
    follower.advance_high_watermark(6)
    assert read(follower, 0).data == data


def test_follower_skips_a_partial_batch_and_rejects_damage() -> None:
    leader, follower = log_of(), log_of()
    append(leader, batch(b"a"))
    append(leader, batch(b"b"))
    data = bytearray(read(leader, 0).data)
    follower.append_as_follower(data[:-3])
    assert follower.end_offset == 1
    data[-1] ^= 1
    error = refusal(lambda: follower.append_as_follower(data))
    assert error.code is ErrorCode.CORRUPT_MESSAGE
    assert follower.end_offset == 1
    assert follower.append_as_follower(b"") is None


def test_delete_records_moves_the_start_and_retention_discards_segments() -> None:
    log = log_of(segment_bytes=200, retention_ms=-1)
    for _ in range(10):
        append(log, batch(bytes(60)))
    log.delete_records_before(5)
    assert log.start_offset == 5
    assert read_all(log)[0][0] == 5
    discarded = log.enforce_retention(NOW_MS)
    assert sum(s.next_offset - s.base_offset for s in discarded) in (4, 5)
    assert log.segments[0].base_offset <= 5
    error = refusal(lambda: log.delete_records_before(11))
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_retention_by_time_discards_only_old_segments() -> None:
    log = log_of(segment_bytes=200, retention_ms=1000)
    for age in (5000, 4000, 3000, 500, 400):
        append(log, batch(bytes(100), timestamp=NOW_MS - age))
    assert len(log.segments) == 5
    log.enforce_retention(NOW_MS)
    assert log.start_offset == 3
    assert [offset for offset, _ in read_all(log)] == [3, 4]


def test_retention_by_time_discards_also_the_active_segment() -> None:
    log = log_of(retention_ms=1000)
    append(log, batch(b"a", timestamp=NOW_MS - 5000))
    assert len(log.enforce_retention(NOW_MS)) == 1
    assert (log.start_offset, log.end_offset, log.size_bytes) == (1, 1, 0)
    assert append(log, batch(b"b")).base_offset == 1


def test_retention_of_records_without_timestamps_counts_from_the_write() -> None:
    leader, follower = log_of(), log_of(segment_bytes=200, retention_ms=1000)
    follower.truncate_fully_and_start_at(0)
    for offset in range(5):
        append(leader, batch(bytes(100), timestamp=-1))
        follower.append_as_follower(read(leader, offset).data)
    follower.advance_high_watermark(5)
    assert len(follower.segments) == 5
    written_ms = follower.segments.active.modified_ms()
    assert not follower.enforce_retention(written_ms + 1000)
    assert len(follower.enforce_retention(written_ms + 1001)) == 5


def test_restart_keeps_records_without_timestamps() -> None:
    machine = Machine()
    settings = LogSettings(segment_bytes=800, index_interval_bytes=100, retention_ms=1000)
    directory, log = machine.load(settings)
    for _ in range(20):
        append(log, batch(bytes(100), timestamp=-1))
    written_ms = log.segments[0].modified_ms()
    for _ in range(2):  # the first start writes the missing time indexes
        stop_cleanly(directory)
        directory, log = machine.load(settings)
    assert {segment.max_timestamp for segment in log.segments} == {-1}
    log.advance_high_watermark(20)
    assert not log.enforce_retention(written_ms + 1000)
    assert len(read_all(log)) == 20


def test_retention_by_size_keeps_at_least_the_limit() -> None:
    log = log_of(segment_bytes=200, retention_ms=-1, retention_bytes=500)
    for _ in range(20):
        append(log, batch(bytes(100)))
    log.enforce_retention(NOW_MS)
    size = log.segments[0].size
    assert 500 <= log.size_bytes < 500 + size
    assert log.size_bytes == sum(segment.size for segment in log.segments)


def test_retention_stops_at_the_high_watermark() -> None:
    log = log_of(segment_bytes=200, retention_ms=1000)
    for _ in range(5):
        log.append_as_leader(
            batch(bytes(100), timestamp=NOW_MS - 5000), leader_epoch=EPOCH, now_ms=NOW_MS
        )
    log.advance_high_watermark(2)
    log.enforce_retention(NOW_MS)
    assert log.start_offset == 2


def test_retention_does_not_apply_to_a_compacted_topic() -> None:
    log = log_of(segment_bytes=200, retention_ms=1000, cleanup_policy=("compact",))
    log.append_as_leader(
        bytearray(build_batch([NewRecord(b"v", key=b"k", timestamp=NOW_MS - 5000)])),
        leader_epoch=EPOCH,
        now_ms=NOW_MS,
    )
    log.advance_high_watermark(1)
    assert log.enforce_retention(NOW_MS) == []


def test_truncation_removes_whole_batches_and_rolls_back_producers_and_epochs() -> None:
    log = log_of(segment_bytes=400, index_interval_bytes=0)
    for number in range(30):
        log.append_as_leader(
            batch(b"a", b"b", producer=7, sequence=2 * number),
            leader_epoch=LeaderEpoch(number // 10),
            now_ms=NOW_MS,
        )
    log.advance_high_watermark(60)
    log.truncate_to(25)
    assert log.end_offset == 24
    assert log.high_watermark == 24
    assert log.epochs.entries == [(0, 0), (1, 20)]
    assert log.producers.entries[7].batches[-1].last_offset == 23
    assert [offset for offset, _ in read_all(log)] == list(range(24))
    appended = log.append_as_leader(
        batch(b"c", producer=7, sequence=24), leader_epoch=LeaderEpoch(5), now_ms=NOW_MS
    )
    assert appended.base_offset == 24
    assert log.size_bytes == sum(segment.size for segment in log.segments)


def test_truncation_rebuilds_producers_that_are_not_in_memory() -> None:
    log = log_of()
    for producer in (1, 2):
        append(log, batch(b"a", producer=producer, sequence=0))
    for sequence in range(1, 20):
        append(log, batch(b"a", producer=1, sequence=sequence))
    log.truncate_to(3)
    assert [entry.last_sequence for entry in log.producers.entries.values()] == [1, 0]
    log.truncate_to(1)
    assert list(log.producers.entries) == [1]


def test_truncating_the_batch_with_the_start_offset_empties_the_log() -> None:
    log = log_of()
    append(log, batch(b"a", b"b", b"c"))
    log.delete_records_before(1)
    log.truncate_to(2)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (1, 1, 1)
    assert append(log, batch(b"d")).base_offset == 1


def test_fully_truncated_log_starts_at_any_offset() -> None:
    log = log_of()
    append(log, batch(b"a", producer=1, sequence=0))
    log.truncate_fully_and_start_at(500)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (500, 500, 500)
    assert not log.producers.entries
    assert not log.epochs.entries
    assert append(log, batch(b"b")).base_offset == 500
    assert read_all(log) == [(500, b"b")]


def test_last_stable_offset_stops_at_an_open_transaction() -> None:
    log = log_of()
    append(log, batch(b"plain"))
    append(log, batch(b"t", producer=5, sequence=0, transactional=True))
    append(log, batch(b"plain"))
    assert log.last_stable_offset == 1
    end_transaction(log, 5, commit=False)
    assert log.last_stable_offset == 1, "the marker is not committed yet"
    log.advance_high_watermark(log.end_offset)
    assert log.last_stable_offset == 4
    (aborted,) = log.aborted_transactions(0, 4)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (5, 1, 3)
    assert log.aborted_transactions(4, 9) == ()


def test_open_files_stay_within_the_limit() -> None:
    machine = Machine()
    directory = machine.start(DirectorySettings(open_files_max=16))
    logs = []
    for index in range(40):
        partition = TopicPartition(PARTITION.topic, PartitionIndex(index))
        logs.append(directory.create(partition, TOPIC_ID, LogSettings(segment_bytes=100)))
    for number in range(4):
        for log in logs:
            append(log, batch(b"%d" % number))
    assert len(directory.open_files) <= 16
    for log in logs:
        assert read_all(log) == [(number, b"%d" % number) for number in range(4)]


@pytest.mark.parametrize("is_cold", [False, True])
def test_sequential_reader_needs_no_index_search(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    _, log = machine.load(LogSettings(index_interval_bytes=100))
    for _ in range(20):
        append(log, batch(bytes(100)))
    if is_cold:
        machine.disk.evict()
    offset = read(log, 0, max_bytes=800).next_offset
    searched: list[int] = []
    position_before = OffsetIndex.position_before

    def record(index: OffsetIndex, offset: int) -> int:
        searched.append(offset)
        return position_before(index, offset)

    monkeypatch.setattr(OffsetIndex, "position_before", record)
    assert values_of(read(log, offset).data)[0][0] == offset
    assert not searched
    assert values_of(read(log, offset + 1).data)[0][0] == offset + 1
    assert searched


def test_cold_read_survives_a_roll_and_a_discard() -> None:
    machine = Machine()
    _, log = machine.load(LogSettings(segment_bytes=1000, retention_ms=1000))
    for _ in range(3):
        append(log, batch(b"a"))
    machine.disk.evict()
    flush(log)
    found = log.read(0, max_bytes=1000, end=3)
    assert isinstance(found, ColdRead)
    log.roll(NOW_MS)
    log.enforce_retention(NOW_MS + 10_000)
    assert log.start_offset == 3
    assert [offset for offset, _ in values_of(found.load().data)] == [0, 1, 2]
    found.adopt()


def test_truncation_to_the_first_segment_keeps_producers_of_discarded_segments() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(producer=5, sequence=0, transactional=True))
    append(log, batch(producer=6, sequence=0))
    log.delete_records_before(2)
    log.enforce_retention(NOW_MS)
    flush(log, whole=True)
    directory.checkpoint().write()
    assert log.enforce_retention(NOW_MS) != []
    append(log, batch(producer=6, sequence=1))
    log.truncate_to(2)
    assert (log.start_offset, log.end_offset) == (2, 2)
    assert log.producers.entries[5].transaction_start == 0
    assert append(log, batch(producer=6, sequence=0)).is_duplicate
    assert append(log, batch(producer=6, sequence=1)).base_offset == 2


def test_retention_keeps_the_last_batch_of_a_producer_until_a_snapshot_is_durable() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(producer=5, sequence=0))
    log.delete_records_before(1)
    assert log.enforce_retention(NOW_MS) == []
    machine.kill()
    directory, log = machine.load(LogSettings())
    append(log, batch(producer=5, sequence=1))
    log.delete_records_before(2)
    log.enforce_retention(NOW_MS)
    flush(log, whole=True)
    directory.checkpoint().write()
    assert log.enforce_retention(NOW_MS) != []
    machine.kill()
    _, log = machine.load(LogSettings())
    assert append(log, batch(producer=5, sequence=1)).is_duplicate
    assert append(log, batch(producer=5, sequence=2)).base_offset == 2
