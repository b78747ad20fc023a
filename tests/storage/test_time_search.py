"""Searches by timestamp agree with a linear search."""

from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.settings import LogSettings

from .machines import EPOCH, NOW_MS, Machine, stop_cleanly

SMALL = LogSettings(segment_bytes=400, index_interval_bytes=0, retention_ms=-1)

times = st.integers(0, 30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(times, min_size=1, max_size=4), max_size=25),
    st.integers(0, 12),
    st.integers(0, 8),
    st.booleans(),
)
def test_offsets_by_timestamp_agree_with_a_linear_search(
    batches: list[list[int]], deleted: int, uncommitted: int, is_restarted: bool
) -> None:
    machine = Machine()
    directory, log = machine.load(SMALL)
    records: list[tuple[int, int]] = []
    for batch in batches:
        data = build_batch([NewRecord(b"v", timestamp=NOW_MS + time) for time in batch])
        appended = log.append_as_leader(bytearray(data), leader_epoch=EPOCH, now_ms=NOW_MS + 30)
        for delta, time in enumerate(batch):
            records.append((appended.base_offset + delta, NOW_MS + time))
    boundaries = [0]
    for batch in batches:
        boundaries.append(boundaries[-1] + len(batch))
    committed = boundaries[max(len(boundaries) - 1 - uncommitted, 0)]
    if is_restarted:
        stop_cleanly(directory)
        _, log = machine.load(SMALL)
    log.advance_high_watermark(committed)
    log.delete_records_before(min(deleted, committed))
    visible = [record for record in records if log.start_offset <= record[0] < committed]
    for time in range(-1, 32):
        wanted = [record for record in visible if record[1] >= NOW_MS + time]
        found = log.offset_for_timestamp(NOW_MS + time)
        assert (found and (found.offset, found.timestamp)) == (wanted[0] if wanted else None)
        assert found is None or found.leader_epoch == EPOCH
    latest = max(visible, key=lambda record: (record[1], -record[0]), default=None)
    found = log.offset_of_max_timestamp()
    assert (found and (found.offset, found.timestamp)) == latest
