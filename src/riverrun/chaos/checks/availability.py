"""Availability of a cluster: throughput over time, and windows without an acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from riverrun.chaos.history import Action, Operation, OperationKind

SILENCE_SECONDS = 0.5
"""A pause in acknowledgements of this length counts as a window of unavailability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Times ``[start, end)`` without an acknowledgement, of one partition or of all (-1)."""

    start: float
    end: float
    partition: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start


def acknowledged_times(operations: Sequence[Operation], partition: int = -1) -> list[float]:
    return [
        operation.time
        for operation in operations
        if operation.action is Action.SEND
        and operation.kind is OperationKind.OK
        and partition in (-1, operation.partition)
    ]


def silences(
    operations: Sequence[Operation],
    *,
    partition: int = -1,
    at_least: float = SILENCE_SECONDS,
    until: float | None = None,
) -> list[Window]:
    """Pauses between acknowledgements, from the first one to ``until``.

    Time after the last send does not count, because no response is expected then.
    """
    times = acknowledged_times(operations, partition)
    asked = [
        o.time for o in operations if o.action is Action.SEND and o.kind is OperationKind.INVOKE
    ]
    if not times:
        return []
    if asked:
        until = asked[-1] if until is None else min(until, asked[-1])
    if until is not None:
        times = [*(time for time in times if time <= until), until]
    return [
        Window(start=before, end=after, partition=partition)
        for before, after in pairwise(times)
        if after - before >= at_least
    ]


def longest_silence(
    operations: Sequence[Operation], *, since: float = 0.0, until: float | None = None
) -> float:
    found = silences(operations, at_least=0.0, until=until)
    return max((window.seconds for window in found if window.end >= since), default=0.0)


def throughput(times: Sequence[float], *, end: float, slice_seconds: float) -> list[float]:
    """Events per second in each slice of ``[0, end)``."""
    count = max(int(end / slice_seconds + 0.999), 1)
    slices = [0] * count
    for time in times:
        if 0 <= time < end:
            slices[min(int(time / slice_seconds), count - 1)] += 1
    return [number / slice_seconds for number in slices]
