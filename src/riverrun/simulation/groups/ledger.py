"""Who owns which partition, and which offsets are committed, as the members observe it.

A member owns a partition from the response that assigns it, until it sends a heartbeat without it,
is fenced, or its session may be over. The session is over at the earliest one session timeout after
the member sent the last heartbeat that was answered. In that time no other member may own it.

A stale member must not commit. A committed offset therefore never goes back, and all records below
it were processed by some member of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from riverrun.simulation.failures import SafetyViolation

Slot = tuple[UUID, int]
GroupSlot = tuple[str, Slot]
GroupPartition = tuple[str, str, int]
"""Group, topic and partition."""


@dataclass(slots=True, kw_only=True, eq=False)
class Membership:
    """One life of a member."""

    group: str
    name: str
    is_running: Callable[[], bool]
    """Whether its process lives."""
    session_seconds: float
    valid_until: float = 0.0
    generation: int | None = None
    """Of a member that uses the classic protocol."""
    owned: dict[Slot, float] = field(default_factory=dict)
    """Partitions with the time when they were taken."""

    def answered(self, sent: float) -> None:
        """The coordinator accepted a heartbeat that was sent at this time."""
        self.valid_until = max(self.valid_until, sent + self.session_seconds)

    def owns(self, slot: Slot, now: float) -> bool:
        return slot in self.owned and now < self.valid_until and self.is_running()


@dataclass(slots=True, kw_only=True, eq=False)
class SentCommit:
    member: Membership
    slot: Slot
    at: GroupPartition
    offset: int
    sent: float


@dataclass(slots=True)
class _GroupOffset:
    floor: int = 0
    """The committed offset is at least this one."""
    processed: int = 0
    """All records below were processed."""
    in_doubt: list[SentCommit] = field(default_factory=list)
    fetched: tuple[Membership, float, int] | None = None
    """Who fetched the committed offset last, since when it has the partition, and the offset."""


class OwnershipLedger:
    """``is_lossless``: no node has lost acknowledged records by permission."""

    def __init__(self, is_lossless: Callable[[], bool]) -> None:
        self.is_lossless = is_lossless
        self._members: dict[str, list[Membership]] = {}
        self._offsets: dict[GroupPartition, _GroupOffset] = {}
        self.claims = 0
        self.commits = 0
        self.refusals = 0
        """Commits that the coordinator refused."""

    # Partitions

    def began(self, member: Membership) -> None:
        living = [one for one in self._members.get(member.group, ()) if one.is_running()]
        self._members[member.group] = [*living, member]

    def claim(self, member: Membership, slot: Slot, now: float) -> None:
        """A response assigns a partition to a member."""
        self.claims += 1
        member.owned[slot] = now
        if not member.owns(slot, now):
            return  # the response is so late that the member may be fenced already
        for other in self._members.get(member.group, ()):
            if other is member or not other.owns(slot, now) or _are_classic(member, other):
                continue
            self._fail(
                f"group {member.group}: {member.name} gets partition {_text(slot)} while "
                f"{other.name} owns it since {other.owned[slot]:.3f}"
            )

    def release(self, member: Membership, slots: Iterable[Slot]) -> None:
        for slot in list(slots):
            member.owned.pop(slot, None)

    def end(self, member: Membership) -> None:
        """A member gives up everything: it leaves, or was fenced."""
        member.owned.clear()

    def check_fenced(self, member: Membership, now: float, doubts: int, reason: str) -> None:
        """A member that sends its heartbeats in time is not fenced.

        After one lost response the coordinator still knows the member's epoch; after two it may
        not.
        """
        if now < member.valid_until and doubts <= 1:
            self._fail(
                f"group {member.group}: {member.name} is fenced ({reason}) "
                f"{member.valid_until - now:.3f} s before its session ends"
            )

    def owners(self, group: str) -> dict[Slot, list[str]]:
        """The members that have each partition, whether or not their session may be over."""
        found: dict[Slot, list[str]] = {}
        for member in self._members.get(group, ()):
            if member.is_running():
                for slot in member.owned:
                    found.setdefault(slot, []).append(member.name)
        return found

    # Offsets

    def floor(self, at: GroupPartition) -> int:
        return self._of(at).floor

    def fetched(
        self, member: Membership, slot: Slot, at: GroupPartition, offset: int, now: float
    ) -> None:
        """A member starts at the committed offset of a partition that it has taken."""
        known = self._of(at)
        if not member.owns(slot, now):
            return
        is_late = any(one.offset == offset for one in known.in_doubt)
        if offset < known.floor and not is_late:
            self._fail(
                f"{_name(at)}: the committed offset went back from {known.floor} to {offset}"
            )
        if offset > known.processed:
            self._fail(f"{_name(at)}: {offset} is committed, but nobody read {known.processed}")
        known.floor = offset
        known.in_doubt = [one for one in known.in_doubt if one.member is member]
        known.fetched = (member, member.owned[slot], offset)

    def processed(self, at: GroupPartition, start: int, end: int) -> None:
        known = self._of(at)
        if start <= known.processed:
            known.processed = max(known.processed, end)

    def committing(
        self, member: Membership, slot: Slot, at: GroupPartition, offset: int, now: float
    ) -> SentCommit:
        commit = SentCommit(member=member, slot=slot, at=at, offset=offset, sent=now)
        self._of(at).in_doubt.append(commit)
        return commit

    def accepted(self, commit: SentCommit, now: float) -> None:
        """The coordinator accepted a commit. Without this call its result stays unknown."""
        self.commits += 1
        known = self._of(commit.at)
        if commit in known.in_doubt:
            known.in_doubt.remove(commit)
        if known.fetched is None or known.fetched[0] is commit.member:
            known.floor = commit.offset
            return
        owner, since, start = known.fetched
        if not owner.owns(commit.slot, now) or owner.owned[commit.slot] != since:
            return
        if commit.sent > since:
            self._fail(
                f"{_name(commit.at)}: {commit.member.name} commits {commit.offset}, but "
                f"{owner.name} has the partition since {since:.3f}"
            )
        elif commit.offset > start:
            self._fail(
                f"{_name(commit.at)}: {owner.name} starts at {start}, and later the commit of "
                f"{commit.offset} by {commit.member.name} is accepted"
            )

    def _of(self, at: GroupPartition) -> _GroupOffset:
        return self._offsets.setdefault(at, _GroupOffset())

    def _fail(self, message: str) -> None:
        if self.is_lossless():
            raise SafetyViolation(message)


def _are_classic(one: Membership, other: Membership) -> bool:
    """Two members of the classic protocol. A rebalance that ended without one of them fences it
    with its next request, so they must differ only within one generation."""
    return (
        one.generation is not None
        and other.generation is not None
        and one.generation != other.generation
    )


def _text(slot: Slot) -> str:
    return f"{str(slot[0])[:8]}-{slot[1]}"


def _name(at: GroupPartition) -> str:
    return f"group {at[0]}, {at[1]}-{at[2]}"
