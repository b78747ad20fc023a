"""Assigns records to batches and tasks. Pure: offsets in, ranges out.

The arithmetic is that of Spark's Kafka source, so the same options give the same ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_riverrun.offsets import Offsets
from riverrun.model.ids import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets [start, end) of a partition, read by one task."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def limit_offsets(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """End offsets that limit a batch to about ``rows_max`` offsets, in proportion to size."""
    sizes = {at: end[at] - start[at] for at in end if end[at] > start[at]}
    total = sum(sizes.values())
    if total <= rows_max:
        return dict(end)
    reached = dict(end)
    for at, size in sizes.items():
        share = rows_max * (size / total)
        # At least one, so that a small partition also advances.
        whole = math.ceil(share) if share < 1 else math.floor(share)
        reached[at] = min(end[at], start[at] + whole)
    return reached


def count_between(start: Offsets, end: Offsets) -> int:
    return sum(max(0, end[at] - start.get(at, end[at])) for at in end)


def plan_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Range]:
    """One range per partition with records, or more if the options require it."""
    whole = [
        Range(topic=at.topic, partition=at.partition, start=start[at], end=end[at])
        for at in sorted(end)
        if end[at] > start[at]
    ]
    if max_records is not None:
        whole = [part for one in whole for part in _split(one, math.ceil(one.size / max_records))]
    if min_partitions is None or min_partitions <= len(whole):
        return whole
    return _at_least(whole, min_partitions)


def _at_least(whole: Sequence[Range], wanted: int) -> list[Range]:
    """Split large ranges until there are about ``wanted``. Small ones stay whole."""
    total = sum(one.size for one in whole)
    is_small = [_parts(one.size, total, wanted) == 1 for one in whole]
    left = max(wanted - sum(is_small), 1)
    total_large = sum(one.size for one, small in zip(whole, is_small, strict=True) if not small)
    return [
        part
        for one, small in zip(whole, is_small, strict=True)
        for part in ([one] if small else _split(one, _parts(one.size, total_large, left)))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _split(one: Range, parts: int) -> list[Range]:
    found = []
    start = one.start
    for part in range(parts):
        size = (one.end - start) // (parts - part)
        if size:
            found.append(replace(one, start=start, end=start + size))
        start += size
    return found
