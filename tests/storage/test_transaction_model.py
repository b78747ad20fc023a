"""The transactional state of a log agrees with a naive model: leader, follower, restarts."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from riverrun.storage.log import Log
from riverrun.storage.markers import NewMarker, TransactionMarker
from riverrun.storage.settings import LogSettings

from .machines import DATA, EPOCH, NOW_MS, PARTITION, Machine, batch, flush, read, stop_cleanly

SETTINGS = LogSettings(segment_bytes=500, index_interval_bytes=150, retention_ms=-1)
PRODUCERS = st.integers(1, 4)
PLAIN = -1


class Event(NamedTuple):
    """One batch of the log. ``commit`` is None for data."""

    producer: int
    offset: int
    end: int
    commit: bool | None = None


class Expected(NamedTuple):
    """What a reader of the whole list of batches finds."""

    open: dict[int, int]
    ended: list[tuple[int, int, int, bool]]
    """Producer, first offset, marker's offset, and whether it was committed."""

    def stable(self, high_watermark: int, start: int) -> int:
        unstable = [
            *self.open.values(),
            *(first for _, first, marker, _ in self.ended if marker >= high_watermark),
        ]
        return min(high_watermark, max(min(unstable, default=high_watermark), start))

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        return sorted(
            (
                (producer, first, marker)
                for producer, first, marker, is_commit in self.ended
                if not is_commit and marker >= start and first < end
            ),
            key=lambda each: each[1],
        )


def expected(events: list[Event]) -> Expected:
    found = Expected({}, [])
    for event in events:
        if event.producer == PLAIN:
            continue
        if event.commit is None:
            found.open.setdefault(event.producer, event.offset)
        elif event.producer in found.open:
            first = found.open.pop(event.producer)
            found.ended.append((event.producer, first, event.offset, event.commit))
    return found


class TransactionsAgreeWithAModel(RuleBasedStateMachine):
    """The follower copies the leader's batches. Both are restarted in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.follower_machine = Machine(1), Machine(2)
        self.directory, self.log = self.machine.load(SETTINGS)
        self.follower_directory, self.follower = self.follower_machine.load(SETTINGS)
        self.events: list[Event] = []
        self.follower_events: list[Event] = []
        self.sequences: dict[int, int] = {}
        self.high_watermark = 0
        self.start = 0

    @property
    def end(self) -> int:
        return self.events[-1].end if self.events else 0

    @rule(producers=st.lists(PRODUCERS, min_size=1, max_size=4), count=st.integers(1, 3))
    def append(self, producers: list[int], count: int) -> None:
        for producer in producers:
            sequence = self.sequences.get(producer, 0)
            data = batch(*[b"x"] * count, producer=producer, sequence=sequence, transactional=True)
            self.log.append_as_leader(data, leader_epoch=EPOCH, now_ms=NOW_MS)
            self.sequences[producer] = sequence + count
            self.events.append(Event(producer, self.end, self.end + count))

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        self.log.append_as_leader(batch(*[b"p"] * count), leader_epoch=EPOCH, now_ms=NOW_MS)
        self.events.append(Event(PLAIN, self.end, self.end + count))

    @rule(ended=st.dictionaries(PRODUCERS, st.booleans(), min_size=1))
    def write_markers(self, ended: dict[int, bool]) -> None:
        markers = [
            NewMarker(producer, 0, TransactionMarker(commit, 0))
            for producer, commit in ended.items()
        ]
        self.log.append_markers(markers, leader_epoch=EPOCH, now_ms=NOW_MS)
        for producer, commit in ended.items():
            self.events.append(Event(producer, self.end, self.end + 1, commit))

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end), label="hw")
        self.log.advance_high_watermark(self.high_watermark)

    @rule(whole=st.booleans())
    def flush(self, whole: bool) -> None:
        flush(self.log, whole=whole)

    @rule()
    def roll(self) -> None:
        if self.log.segments.active.size:
            self.log.roll(NOW_MS)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        borders = [0, *(event.end for event in self.events)]
        lowest = max(self.high_watermark, self.start)
        offset = data.draw(
            st.sampled_from([border for border in borders if border >= lowest]), label="offset"
        )
        self.log.lower_recovery_point(offset)
        self.directory.checkpoint().write()
        self.log.truncate_to(offset)
        self.events = [event for event in self.events if event.end <= offset]
        for producer in list(self.sequences):
            known = self.log.producers.entries.get(producer)
            self.sequences[producer] = 0 if known is None else known.last_sequence + 1

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        last = max(self.start, min(self.high_watermark, self.follower.end_offset))
        self.start = data.draw(st.integers(self.start, last), label="start")
        self.log.delete_records_before(self.start)

    @rule()
    def discard_segments(self) -> None:
        """Discard the segments below the start, also those of open transactions."""
        flush(self.log, whole=True)
        self.directory.checkpoint().write()
        self.log.enforce_retention(NOW_MS)
        assert self.log.start_offset == self.start

    @rule()
    def restart_cleanly(self) -> None:
        stop_cleanly(self.directory)
        self._reload()

    @rule()
    def kill(self) -> None:
        self.directory.checkpoint().write()
        self.machine.kill()
        self._reload()

    @rule()
    def lose_the_transaction_indexes(self) -> None:
        stop_cleanly(self.directory)
        folder = f"{DATA}/{PARTITION}"
        for name in self.machine.files.list_directory(folder):
            if name.endswith(".txnindex"):
                self.machine.files.unlink(f"{folder}/{name}")
        self._reload()

    def _reload(self) -> None:
        self.directory, self.log = self.machine.load(SETTINGS)
        assert self.log.high_watermark <= self.high_watermark
        self.log.advance_high_watermark(self.high_watermark)

    @rule()
    def replicate(self) -> None:
        common = [
            ours
            for ours, theirs in zip(self.events, self.follower_events, strict=False)
            if ours == theirs
        ]
        agreed = common[-1].end if common else 0
        if agreed < self.start:
            return  # the follower would start again at the leader's start
        self.follower_events = list(self.events)
        self.follower.truncate_to(agreed)
        while self.follower.end_offset < self.end:
            found = read(self.log, max(self.follower.end_offset, self.start), end=self.end)
            assert self.follower.append_as_follower(bytes(found.data)) is not None
        self.follower.advance_high_watermark(self.high_watermark)

    @rule()
    def restart_the_follower(self) -> None:
        self.follower_directory.checkpoint().write()
        self.follower_machine.kill()
        self.follower_directory, self.follower = self.follower_machine.load(SETTINGS)

    @invariant()
    def states_agree(self) -> None:
        assert self.log.end_offset == self.end
        self._check(self.log, self.events, self.start)
        self._check(self.follower, self.follower_events, 0)

    def _check(self, log: Log, events: list[Event], start: int) -> None:
        want = expected(events)
        high_watermark = log.high_watermark
        assert log.last_stable_offset == want.stable(high_watermark, start)
        entries = log.producers.entries
        found = {
            producer: entry.transaction_start
            for producer, entry in entries.items()
            if entry.transaction_start is not None
        }
        assert found == want.open
        borders = sorted({start, log.end_offset, *(event.offset for event in events[-6:])})
        for low in borders:
            for high in borders:
                if low < high:
                    listed = [
                        (each.producer_id, each.first_offset, each.last_offset)
                        for each in log.aborted_transactions(low, high)
                    ]
                    assert listed == want.aborted(low, high), (low, high)


TestTransactionsAgreeWithAModel = TransactionsAgreeWithAModel.TestCase
TestTransactionsAgreeWithAModel.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None
)
