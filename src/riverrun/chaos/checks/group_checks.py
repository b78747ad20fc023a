"""Checks what the members of a group reported: owners, reads and commits.

A partition has one owner at a time, all records are read, and a new owner starts at the committed
offset or after it. A member that was fenced reports the loss of its partitions late, so the end of
its ownership is not known and only its reads and commits count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class MemberAction(StrEnum):
    TAKE = "take"
    GIVE_UP = "give-up"
    LOSE = "lose"
    """The group gave the partition away without waiting for the member."""
    READ = "read"
    COMMIT = "commit"
    END = "end"
    """The process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEvent:
    time: float
    member: str
    action: MemberAction
    partition: int = -1
    start: int = -1
    """The first offset of a read."""
    end: int = -1
    """The offset after a read, or the committed offset."""


@dataclass(frozen=True, slots=True)
class _Ownership:
    partition: int
    member: str
    start: float
    end: float


def check_group(events: Iterable[MemberEvent], ends: dict[int, int]) -> list[str]:
    """All violations. ``ends`` has the log end of each partition."""
    ordered = sorted(events, key=lambda event: event.time)
    return [*_two_owners(ordered), *_unread(ordered, ends), *_started_early(ordered)]


def owners(events: Iterable[MemberEvent]) -> dict[int, list[str]]:
    """The members that have each partition at the end of the events."""
    found: dict[int, list[str]] = {}
    for event in sorted(events, key=lambda event: event.time):
        match event.action:
            case MemberAction.TAKE:
                found.setdefault(event.partition, []).append(event.member)
            case MemberAction.GIVE_UP | MemberAction.LOSE:
                if event.member in found.get(event.partition, []):
                    found[event.partition].remove(event.member)
            case MemberAction.END:
                for names in found.values():
                    while event.member in names:
                        names.remove(event.member)
            case MemberAction.READ | MemberAction.COMMIT:
                pass
    return {partition: names for partition, names in found.items() if names}


def _ownerships(events: Sequence[MemberEvent]) -> list[_Ownership]:
    taken: dict[tuple[int, str], float] = {}
    found: list[_Ownership] = []
    for event in events:
        key = (event.partition, event.member)
        match event.action:
            case MemberAction.TAKE:
                taken[key] = event.time
            case MemberAction.GIVE_UP:
                if key in taken:
                    found.append(_Ownership(*key, taken.pop(key), event.time))
            case MemberAction.LOSE:
                taken.pop(key, None)
            case MemberAction.END:
                for partition, member in [one for one in taken if one[1] == event.member]:
                    start = taken.pop((partition, member))
                    found.append(_Ownership(partition, member, start, event.time))
            case MemberAction.READ | MemberAction.COMMIT:
                pass
    found += [_Ownership(*key, start, float("inf")) for key, start in taken.items()]
    return sorted(found, key=lambda one: (one.partition, one.start))


def _two_owners(events: Sequence[MemberEvent]) -> list[str]:
    found = []
    last: dict[int, _Ownership] = {}
    for one in _ownerships(events):
        before = last.get(one.partition)
        if before is not None and one.start < before.end and one.member != before.member:
            found.append(
                f"partition {one.partition}: {one.member} has it from {one.start:.3f} s, "
                f"{before.member} until {before.end:.3f} s"
            )
        if before is None or one.end > before.end:
            last[one.partition] = one
    return found


def _unread(events: Sequence[MemberEvent], ends: dict[int, int]) -> list[str]:
    found = []
    for partition, end in ends.items():
        reads = sorted(
            (event.start, event.end)
            for event in events
            if event.action is MemberAction.READ and event.partition == partition
        )
        position = 0
        for start, after in reads:
            if start > position:
                found.append(f"partition {partition}: nobody read {position} to {start - 1}")
            position = max(position, after)
        if position < end:
            found.append(f"partition {partition}: nobody read {position} to {end - 1}")
    return found


def _started_early(events: Sequence[MemberEvent]) -> list[str]:
    """The first read after a take is not before the offset that was committed at the take."""
    found = []
    committed: dict[int, int] = {}
    least: dict[tuple[int, str], int] = {}
    for event in events:
        key = (event.partition, event.member)
        match event.action:
            case MemberAction.COMMIT:
                committed[event.partition] = max(committed.get(event.partition, 0), event.end)
            case MemberAction.TAKE:
                least[key] = committed.get(event.partition, 0)
            case MemberAction.READ:
                expected = least.pop(key, 0)
                if event.start < expected:
                    found.append(
                        f"partition {event.partition}: {event.member} starts at {event.start}, but "
                        f"{expected} was committed"
                    )
            case MemberAction.GIVE_UP | MemberAction.LOSE | MemberAction.END:
                pass
    return found
