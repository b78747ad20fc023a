"""Compaction keeps the latest record of each key, and some records besides."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.records.batch import CorruptBatch
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord
from riverrun.storage.cleaning.cleaned_segment import discard_cleaned
from riverrun.storage.cleaning.compaction import (
    CompactionAborted,
    CompactionTask,
    LastRecord,
    compact,
)

from .logs_to_compact import DIRECTORY, LogToCompact


def put(key: str, value: str | None, timestamp: int = 5) -> NewRecord:
    return NewRecord(None if value is None else value.encode(), key.encode(), timestamp)


def values(log: LogToCompact) -> list[tuple[int, str, str | None]]:
    return [
        (
            record.offset,
            (record.key or b"").decode(),
            None if record.value is None else record.value.decode(),
        )
        for record in log.records()
    ]


def test_latest_record_of_each_key_stays_at_its_offset() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), put("b", "1"), put("a", "2"))
    log.roll()
    log.write(put("c", "1"))
    log.write(put("b", "2"))
    (cleaned,) = log.compact(log.task())
    assert values(log) == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2")]
    assert cleaned.replaced == (0, 3)
    assert (cleaned.next_offset, cleaned.cleaned_to) == (5, 5)
    assert (cleaned.records_read, cleaned.records_kept) == (5, 3)


def test_keys_of_the_dirty_part_remove_records_of_the_clean_part() -> None:
    log = LogToCompact()
    log.write(put("a", "old"), put("b", "old"))
    log.roll()
    log.write(put("a", "new"))
    log.compact(log.task(first_dirty_offset=2))
    assert values(log) == [(1, "b", "old"), (2, "a", "new")]


def test_batches_with_all_records_kept_do_not_change() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), put("b", "2"), compression=Compression.ZSTD)
    before = bytes(log.files.contents[log.path(0)])
    log.compact(log.task())
    assert log.files.contents[log.path(0)] == before


def test_last_batch_of_a_segment_stays_even_if_empty() -> None:
    log = LogToCompact()
    log.write(put("a", "1"))
    log.write(put("a", "2"))
    log.roll()
    log.write(put("a", "3"))
    log.compact(log.task(segment_bytes_max=1))  # one new segment for each old one
    assert values(log) == [(2, "a", "3")]
    assert [(header.base_offset, header.count) for header in log.headers()] == [(1, 0), (2, 1)]


def test_segments_are_grouped_up_to_their_size() -> None:
    log = LogToCompact()
    for number in range(6):
        log.write(put(f"k{number}", "v"))
        log.roll()
    size = len(log.files.contents[log.path(0)])
    results = log.compact(log.task(segment_bytes_max=2 * size))
    assert [cleaned.replaced for cleaned in results] == [(0, 1), (2, 3), (4, 5)]
    assert len(values(log)) == 6


def test_offsets_beyond_the_index_range_do_not_share_a_segment() -> None:
    log = LogToCompact()
    log.write(put("a", "1"))
    log.next_offset = 2**31
    log.roll()
    log.write(put("b", "1"))
    results = log.compact(log.task())
    assert [cleaned.replaced for cleaned in results] == [(0,), (2**31,)]


def test_tombstone_stays_until_its_delete_horizon() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), put("b", "1"))
    log.write(put("a", None, timestamp=7))
    log.write(put("z", "end"))
    log.compact(log.task(now_ms=10_000))
    assert values(log) == [(1, "b", "1"), (2, "a", None), (3, "z", "end")]
    tombstone = log.headers()[1]
    assert tombstone.delete_horizon == 11_000
    assert log.records()[1].timestamp == 7, "its timestamp does not change with the base timestamp"
    assert tombstone.max_timestamp == 7
    log.compact(log.task(now_ms=10_999, first_dirty_offset=4))
    assert (2, "a", None) in values(log)
    assert log.headers()[1].delete_horizon == 11_000, "another compaction does not extend it"
    log.compact(log.task(now_ms=11_000, first_dirty_offset=4))
    assert values(log) == [(1, "b", "1"), (3, "z", "end")]


def test_expired_tombstone_leaves_an_empty_last_batch() -> None:
    log = LogToCompact()
    log.write(put("a", None))
    task = log.task(now_ms=99_000)
    log.compact(task)
    log.compact(log.task(now_ms=200_000, first_dirty_offset=1))
    assert [header.count for header in log.headers()] == [0], "only the offsets are kept"


def test_records_without_key_are_removed() -> None:
    log = LogToCompact()
    log.write(NewRecord(b"no key"), put("a", "1"))
    log.compact(log.task())
    assert values(log) == [(1, "a", "1")]


def test_last_batch_of_an_active_producer_keeps_its_sequence_numbers() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), put("a", "2"), producer=7)
    log.write(put("a", "3"), put("b", "1"), producer=7)
    log.write(put("a", "4"), put("b", "2"))
    log.compact(log.task())
    first, second = log.headers()
    assert (first.base_offset, first.last_offset, first.count) == (2, 3, 0)
    assert (first.producer_id, first.base_sequence, first.last_sequence) == (7, 2, 3)
    assert second.base_offset == 4
    del log.last_records[7]
    log.compact(log.task(first_dirty_offset=6))
    assert [header.base_offset for header in log.headers()] == [4]


def test_aborted_records_are_removed_and_supersede_nothing() -> None:
    log = LogToCompact()
    log.write(put("a", "good"))
    log.write(put("a", "aborted"), producer=1, transactional=True)
    log.end(1, commit=False)
    log.write(put("z", "end"))
    log.last_records.clear()
    log.compact(log.task(now_ms=100))
    assert values(log) == [(0, "a", "good"), (3, "z", "end")]
    marker = next(header for header in log.headers() if header.is_control)
    assert marker.delete_horizon is None, "its records existed in this compaction"
    log.compact(log.task(now_ms=200, first_dirty_offset=4))
    marker = next(header for header in log.headers() if header.is_control)
    assert marker.delete_horizon == 1200, "its records are removed"
    log.compact(log.task(now_ms=1200, first_dirty_offset=4))
    assert not any(header.is_control for header in log.headers())
    assert log.latest() == {b"a": b"good", b"z": b"end"}


def test_transaction_after_an_aborted_one_of_the_same_producer_is_kept() -> None:
    log = LogToCompact()
    log.write(put("a", "old"))
    log.write(put("a", "aborted"), producer=1, transactional=True)
    log.end(1, commit=False)
    log.write(put("a", "committed"), producer=1, transactional=True)
    log.end(1, commit=True)
    log.write(put("z", "end"))
    log.compact(log.task(first_dirty_offset=3))
    assert values(log) == [(3, "a", "committed"), (5, "z", "end")]


def test_marker_stays_as_long_as_records_of_its_transaction() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), producer=1, transactional=True)
    log.end(1, commit=True)
    log.write(put("z", "end"))
    for now_ms in (0, 2000, 4000):
        log.compact(log.task(now_ms=now_ms))
    assert [header.is_control for header in log.headers()] == [False, True, False]
    log.write(put("a", "2"))
    for now_ms in (6000, 8000, 10_000):
        log.last_records.clear()
        log.compact(log.task(now_ms=now_ms))
    assert not any(header.is_control for header in log.headers())


def test_marker_stays_if_only_it_has_the_producer_epoch() -> None:
    log = LogToCompact()
    log.end(1, commit=True)
    log.write(put("z", "end"))
    log.last_records[1] = LastRecord(offset=None, epoch=0)
    for now_ms in (0, 2000, 4000):
        log.compact(log.task(now_ms=now_ms))
    assert [(header.is_control, header.count) for header in log.headers()] == [
        (True, 0),
        (False, 1),
    ]


def test_small_memory_compacts_in_several_rounds() -> None:
    log = LogToCompact()
    for number in range(40):
        log.write(put(f"k{number % 20}", str(number)))
        if number % 8 == 7:
            log.roll()
    before = log.latest()
    first_dirty, rounds = 0, 0
    while first_dirty < log.next_offset:
        results = log.compact(log.task(first_dirty_offset=first_dirty, map_bytes_max=24 * 10))
        assert results[-1].cleaned_to > first_dirty
        first_dirty = results[-1].cleaned_to
        rounds += 1
        assert log.latest() == before
    assert rounds > 2
    assert len(values(log)) < 40


def test_batch_with_more_keys_than_memory_is_compacted() -> None:
    log = LogToCompact()
    log.write(*[put(f"k{number}", "old") for number in range(50)])
    log.write(*[put(f"k{number}", "new") for number in range(50)])
    first_dirty = 0
    for _ in range(2):
        first_dirty = log.compact(log.task(first_dirty_offset=first_dirty, map_bytes_max=1))[
            -1
        ].cleaned_to
    assert {value for _, _, value in values(log)} == {"new"}


def test_damage_is_not_copied() -> None:
    log = LogToCompact()
    log.write(put("a", "1"))
    log.write(put("b", "1"))
    task = log.task()
    log.files.contents[log.path(0)][100] ^= 1
    before = dict(log.files.contents)
    with pytest.raises(CorruptBatch):
        list(compact(log.files, task))
    discard_cleaned(log.files, DIRECTORY)
    assert log.files.contents == before
    del log.files.contents[log.path(0)][-1:]
    with pytest.raises(CorruptBatch):
        list(compact(log.files, task))


def test_throttle_can_abort_a_compaction() -> None:
    log = LogToCompact()
    log.write(put("a", "1"))
    with pytest.raises(CompactionAborted):
        list(compact(log.files, log.task(), lambda _: False))


def test_leftovers_of_an_earlier_attempt_are_replaced() -> None:
    log = LogToCompact()
    log.write(put("a", "1"))
    log.files.open(log.path(0, ".log.cleaned"), create=True).write_at(0, b"x" * 1000)
    log.files.open(log.path(0, ".index.cleaned"), create=True).write_at(0, b"x" * 1000)
    log.compact(log.task())
    assert values(log) == [(0, "a", "1")]


def test_batches_larger_than_a_read_are_compacted() -> None:
    log = LogToCompact()
    log.write(put("a", "1" * (1 << 20)), put("b", "2" * (1 << 20)))
    log.write(put("a", "3" * (1 << 20)))
    before = log.latest()
    log.compact(log.task())
    assert log.latest() == before
    assert len(values(log)) == 2


def test_log_append_time_does_not_change() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), put("a", None), log_append_time_ms=77)
    log.write(put("z", "end"))
    log.compact(log.task(now_ms=50_000))
    assert [record.timestamp for record in log.records()] == [77, 5]
    assert log.headers()[0].max_timestamp == 77


def test_tasks_can_be_sent_to_another_process() -> None:
    log = LogToCompact()
    log.write(put("a", "1"), producer=3)
    task = log.task()
    again: CompactionTask = pickle.loads(pickle.dumps(task))
    assert again == task


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e" * 30])
RECORDS = st.lists(
    st.builds(
        NewRecord,
        key=KEYS,
        value=st.none() | st.binary(max_size=6),
        timestamp=st.integers(0, 2000),
        headers=st.sampled_from([(), (("h", b"1"),)]),
    ),
    min_size=1,
    max_size=4,
)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), RECORDS, st.sampled_from([-1, 1, 2]), st.sampled_from(Compression)),
    st.tuples(st.just("transact"), RECORDS, st.sampled_from([11, 12])),
    st.tuples(st.just("end"), st.sampled_from([11, 12]), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("compact"), st.integers(0, 3000), st.sampled_from([24 * 4, 1 << 20])),
    st.tuples(st.just("expire")),
)


@given(st.lists(ACTIONS, max_size=30), st.sampled_from([1, 500, 1 << 20]))
def test_compaction_never_changes_the_latest_values(
    actions: list[tuple[object, ...]], segment_bytes_max: int
) -> None:
    log = LogToCompact()
    originals = {}
    now_ms = first_dirty = 0
    actions = [*actions, ("compact", 0, 1 << 20)]
    for action in actions:
        match action:
            case ("write", records, producer, codec):
                log.write(*records, producer=producer, compression=codec)  # type: ignore[misc, arg-type]
            case ("transact", records, producer):
                log.write(*records, producer=producer, transactional=True)  # type: ignore[misc, arg-type]
            case ("end", producer, is_commit) if producer in log.opened:
                log.end(producer, commit=is_commit)  # type: ignore[arg-type]
            case ("roll",):
                log.roll()
            case ("expire",):
                log.last_records.clear()
            case ("compact", later, map_bytes_max) if log.next_offset:
                for producer in list(log.opened):  # compaction stops at the last stable offset
                    log.end(producer, commit=False)
                originals.update({record.offset: record for record in log.records()})
                before, last_records = log.latest(), dict(log.last_records)
                now_ms += later  # type: ignore[operator]
                task = log.task(
                    now_ms=now_ms,
                    first_dirty_offset=first_dirty,
                    map_bytes_max=map_bytes_max,
                    segment_bytes_max=segment_bytes_max,
                )
                results = log.compact(task)
                first_dirty = results[-1].cleaned_to
                assert log.latest() == before
                assert all(originals[record.offset] == record for record in log.records())
                headers = log.headers()
                assert headers[-1].next_offset == log.next_offset
                for producer, last in last_records.items():
                    assert any(
                        header.producer_id == producer and header.last_offset == last.offset
                        for header in headers
                    )
                clean = [r.key for r in log.records(committed=True) if r.offset < first_dirty]
                assert len(clean) == len(set(clean)), "each key has one record"
            case _:
                pass
