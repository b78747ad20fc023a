"""The recent end offsets of a partition, to tell when a record was appended.

The end offset is sampled when metrics are read. Between two samples, records are assumed to have
arrived evenly. Unlike the timestamps of records, which producers set, this measures the time that a
record has waited, and it needs no read of the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

SAMPLES_MAX: Final = 64
"""When they are reached, every second older sample is dropped. So with one sample each 15 s the
last 8 minutes have the full resolution, and older ones a coarser one. A node keeps thousands of
these, so they are arrays: 1 kB each."""


class EndOffsetHistory:
    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._ends = array("q")

    def note(self, now: float, end: int) -> None:
        """The partition has this end offset now."""
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:  # the log was truncated, or the topic was created again
            del times[:], ends[:]
        if len(ends) >= 2 and ends[-1] == ends[-2] == end:
            times[-1] = now  # nothing arrived: the first and the last time are enough
            return
        times.append(now)
        ends.append(end)
        if len(ends) > SAMPLES_MAX:
            half = SAMPLES_MAX // 2
            self._times = times[:half:2] + times[half:]
            self._ends = ends[:half:2] + ends[half:]

    def age(self, offset: int, now: float) -> float:
        """Seconds since the record with this offset was appended, for an offset below the end.

        If it was appended before the first sample, returns the time since that sample: it is at
        least that old.
        """
        times, ends = self._times, self._ends
        after = bisect_right(ends, offset)
        assert after < len(ends), f"offset {offset} is not below the end {ends[-1:]}"
        if after == 0:
            return now - times[0]
        start, end = ends[after - 1], ends[after]
        share = (offset - start) / (end - start)
        return now - (times[after - 1] + share * (times[after] - times[after - 1]))
