"""A log agrees with a list of records, through all operations and restarts."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from riverrun.model.ids import LeaderEpoch
from riverrun.storage.segment.reader import ColdRead
from riverrun.storage.settings import LogSettings

from .machines import NOW_MS, Machine, batch, flush, read, stop_cleanly, values_of

SETTINGS = LogSettings(segment_bytes=600, index_interval_bytes=150, retention_ms=-1)


class LogAgreesWithAList(RuleBasedStateMachine):
    """The model has all records, the borders of their batches, and the start offset."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(1, cold_probability=0.1)
        self.directory, self.log = self.machine.load(SETTINGS)
        self.records: list[bytes] = []
        self.borders = [0]
        self.start = 0
        self.sequence = 0
        self.epoch = 0

    @rule(values=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
    def append(self, values: list[bytes]) -> None:
        appended = self.log.append_as_leader(
            batch(*values), leader_epoch=LeaderEpoch(self.epoch), now_ms=NOW_MS
        )
        assert appended.base_offset == len(self.records)
        self._appended(values)

    @rule(values=st.lists(st.binary(max_size=60), min_size=1, max_size=4), twice=st.booleans())
    def append_idempotently(self, values: list[bytes], twice: bool) -> None:
        for attempt in range(1 + twice):
            appended = self.log.append_as_leader(
                batch(*values, producer=5, sequence=self.sequence),
                leader_epoch=LeaderEpoch(self.epoch),
                now_ms=NOW_MS,
            )
            assert appended.is_duplicate == (attempt == 1)
            assert appended.base_offset == len(self.records)
        self.sequence += len(values)
        self._appended(values)

    def _appended(self, values: list[bytes]) -> None:
        self.records += values
        self.borders.append(len(self.records))
        self.log.advance_high_watermark(len(self.records))

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(LeaderEpoch(self.epoch))

    @rule(data=st.data(), max_bytes=st.integers(0, 2000))
    def read_somewhere(self, data: st.DataObject, max_bytes: int) -> None:
        end = len(self.records)
        offset = data.draw(st.integers(self.start, end), label="offset")
        found = read(self.log, offset, max_bytes=max_bytes)
        self._check(offset, end, found.data)

    @rule(data=st.data())
    def read_below_an_end(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.borders), label="end")
        offset = data.draw(st.integers(self.start, len(self.records)), label="offset")
        found = read(self.log, offset, end=end)
        self._check(offset, end, found.data)
        if self.start <= offset < end:
            assert found.next_offset <= end or not found.data

    def _check(self, offset: int, end: int, data: bytes | bytearray | memoryview) -> None:
        got = values_of(data)
        if offset >= end:
            assert not got
            return
        assert got, f"nothing at {offset} below {end}"
        first = max(border for border in self.borders if border <= offset)
        assert got == list(enumerate(self.records))[first : first + len(got)]
        assert first + len(got) in self.borders
        assert first + len(got) <= end

    @rule()
    def roll(self) -> None:
        if self.log.segments.active.size:
            self.log.roll(NOW_MS)

    @rule(whole=st.booleans())
    def flush(self, whole: bool) -> None:
        flush(self.log, whole=whole)

    @rule()
    def checkpoint(self) -> None:
        self.directory.checkpoint().write()

    @rule()
    def evict_the_page_cache(self) -> None:
        self.machine.disk.evict()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        lowest = min(border for border in self.borders if border >= self.start)
        offset = data.draw(st.integers(lowest, len(self.records)), label="offset")
        # As the log manager does: lower the recovery point on disk first.
        self.log.lower_recovery_point(offset)
        self.directory.checkpoint().write()
        self.log.truncate_to(offset)
        border = max(border for border in self.borders if border <= offset)
        del self.records[border:]
        self.borders = [known for known in self.borders if known <= border]
        self.sequence = 0
        known = self.log.producers.entries.get(5)
        if known is not None:
            self.sequence = known.last_sequence + 1
            assert known.batches[-1].last_offset < border
        self.epoch = max(self.epoch, self.log.latest_epoch)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, len(self.records)), label="offset")
        self.log.delete_records_before(offset)
        self.start = offset
        self.log.enforce_retention(NOW_MS)

    @rule()
    def restart_cleanly(self) -> None:
        stop_cleanly(self.directory)
        self._reload()
        assert self.directory.was_clean

    @rule()
    def kill(self) -> None:
        self.directory.checkpoint("log-start-offset-checkpoint").write()
        self.machine.kill()
        self._reload()

    def _reload(self) -> None:
        self.directory, self.log = self.machine.load(SETTINGS)
        self.log.advance_high_watermark(self.log.end_offset)

    @invariant()
    def offsets_agree(self) -> None:
        log = self.log
        assert log.end_offset == len(self.records)
        assert log.start_offset == self.start
        assert log.size_bytes == sum(segment.size for segment in log.segments)
        assert not log.is_corrupt
        assert log.recovery_point <= log.flushed_offset <= log.end_offset
        assert [segment.base_offset for segment in log.segments] == sorted(
            {segment.base_offset for segment in log.segments}
        )

    def teardown(self) -> None:
        offset = self.start
        while offset < len(self.records):
            found = self.log.read(offset, max_bytes=300, end=len(self.records))
            if isinstance(found, ColdRead):
                found = found.load()
            self._check(offset, len(self.records), found.data)
            offset = found.next_offset


TestLogAgreesWithAList = LogAgreesWithAList.TestCase
TestLogAgreesWithAList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
