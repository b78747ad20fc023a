"""Audit events, and the bounded queue that holds them until they are written. Pure.

Events of the same kind by the same principal on the same resource are aggregated: the first one is
queued at once, the others of the next seconds become one event with a count. A flood of denials or
failed logins therefore does not fill the queue. Events without room are dropped and counted, and
the next event that has room says how many were lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from riverrun.ports.metrics import Counter

REPEAT_SECONDS: Final = 10.0
"""Repeated events are aggregated over this time."""
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
EVENT_BYTES: Final = 1024
"""An estimate of the memory of an event without its request and response."""
TEXT_CHARACTERS_MAX: Final = 256
"""Names that clients choose are cut to this length."""

RepeatKey = tuple[Any, ...]


class Origin(Struct, frozen=True, kw_only=True):
    """Who did it, and from where."""

    principal: str
    client_host: str
    listener: str


class LoginEvent(Struct, frozen=True, kw_only=True):
    """A login. ``failure`` is the reason of a failed one; empty if it succeeded."""

    origin: Origin
    mechanism: str
    failure: str = ""


class DenialEvent(Struct, frozen=True, kw_only=True):
    """A missing right."""

    origin: Origin
    api: str
    operation: str
    resource_type: str
    resource_name: str


class ChangeOutcome(Struct, frozen=True, kw_only=True):
    """The results of the items of a request. ``error`` is the first one that is not NONE."""

    succeeded: int = 0
    failed: int = 0
    code: int = 0
    error: str = ""
    message: str = ""
    is_known: bool = True
    """False if the response was too large to look at."""


class ChangeEvent(Struct, frozen=True, kw_only=True):
    """An administrative request that was answered."""

    origin: Origin
    api: str
    api_version: int
    client_id: str
    correlation_id: int
    resources: tuple[tuple[str, str], ...]
    request: Mapping[str, Any]
    """The request without secrets, cut to a limited size."""
    read_outcome: Callable[[], ChangeOutcome]
    """Reads the response. Called when the event is written, not when it is queued."""
    held_bytes: int = 0
    """An estimate of the memory of the request and the response."""


class LostEvents(Struct, frozen=True, kw_only=True):
    """Events that found no room in a queue."""

    count: int


Event = LoginEvent | DenialEvent | ChangeEvent | LostEvents


class Entry(Struct, frozen=True, kw_only=True):
    """An event with the time of its first and last occurrence, in ms since 1970."""

    event: Event
    first_ms: int
    last_ms: int
    count: int = 1


class _Repeat(Struct):
    entry: Entry
    until: float


class AuditQueue:
    """Times are arguments: ``now`` is monotonic, ``now_ms`` since 1970."""

    def __init__(
        self, events_max: int, dropped: Counter, *, bytes_max: int = QUEUED_BYTES_MAX
    ) -> None:
        """``dropped`` counts the events without room."""
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._repeats: dict[RepeatKey, _Repeat] = {}
        """In the order of their ends, because all last equally long."""
        self._dropped = dropped
        self._unreported = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def repeats_until(self) -> float | None:
        """When the oldest aggregation ends."""
        first = next(iter(self._repeats.values()), None)
        return None if first is None else first.until

    def add(self, event: Event, key: RepeatKey | None, *, now: float, now_ms: int) -> None:
        """Queue an event. ``key`` is equal for events that are aggregated; None for none."""
        known = None if key is None else self._repeats.get(key)
        if known is not None:
            seen = known.entry
            known.entry = replace(
                seen,
                first_ms=seen.first_ms if seen.count else now_ms,
                last_ms=now_ms,
                count=seen.count + 1,
            )
            return
        entry = Entry(event=event, first_ms=now_ms, last_ms=now_ms)
        if self._push(entry) and key is not None and len(self._repeats) < self._events_max:
            self._repeats[key] = _Repeat(replace(entry, count=0), now + REPEAT_SECONDS)

    def lose(self, entry: Entry) -> None:
        """Count an entry that this queue or a later stage could not keep."""
        if isinstance(entry.event, LostEvents):  # they were counted before
            self._unreported += entry.event.count
            return
        self._dropped.value += entry.count
        self._unreported += entry.count

    def take(self, count_max: int, *, now: float, now_ms: int) -> list[Entry]:
        """Remove the oldest events, and one about lost events if there are any."""
        self.end_repeats(now)
        taken: list[Entry] = []
        while self._entries and len(taken) < count_max:
            entry = self._entries.popleft()
            self._bytes -= _size(entry.event)
            taken.append(entry)
        if self._unreported:
            lost = LostEvents(count=self._unreported)
            taken.append(Entry(event=lost, first_ms=now_ms, last_ms=now_ms))
            self._unreported = 0
        return taken

    def end_repeats(self, now: float = inf) -> None:
        """Queue the aggregated events whose time is over; by default all of them."""
        ended: list[RepeatKey] = []
        for key, repeat in self._repeats.items():
            if now < repeat.until:
                break
            ended.append(key)
        for key in ended:
            repeat = self._repeats.pop(key)
            if repeat.entry.count and self._push(repeat.entry) and now < inf:
                again = replace(repeat.entry, count=0)
                self._repeats[key] = _Repeat(again, now + REPEAT_SECONDS)

    def _push(self, entry: Entry) -> bool:
        size = _size(entry.event)
        if len(self._entries) >= self._events_max or self._bytes + size > self._bytes_max:
            self.lose(entry)
            return False
        self._entries.append(entry)
        self._bytes += size
        return True


def _size(event: Event) -> int:
    if isinstance(event, ChangeEvent):
        return EVENT_BYTES * (1 + len(event.resources)) + event.held_bytes
    return EVENT_BYTES


def cut(text: str) -> str:
    """A text of a client, limited in length."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "…"
