"""Starts, stops and kills the members of a scenario's group, and checks what they reported."""

from __future__ import annotations

import threading
import time
from itertools import count

from riverrun.chaos.checks.group_checks import MemberAction, MemberEvent, check_group, owners
from riverrun.chaos.cluster import until
from riverrun.chaos.groups.member import GroupProtocol, MemberProcess
from riverrun.chaos.history import Action, History

MEMBERS = 3
PROGRESS_SECONDS_MAX = 45.0
"""A session, a rebalance and the start of a process, on a busy machine."""
CATCH_UP_SECONDS_MAX = 45.0


class GroupLoad:
    """``start``, ``progress``, ``finish``, ``check``. Members are named by their number."""

    def __init__(self, history: History, bootstrap: str, topic: str, partitions: int) -> None:
        self.group = f"{topic}-members"
        self._history, self._bootstrap, self._topic = history, bootstrap, topic
        self._partitions = partitions
        self._numbers = count(1)
        self._events: list[MemberEvent] = []
        self._lock = threading.Lock()
        self._ends: dict[int, int] = {}
        self.members: list[MemberProcess] = []

    def _report(self, event: MemberEvent) -> None:
        with self._lock:
            self._events.append(event)

    def events(self) -> list[MemberEvent]:
        with self._lock:
            return list(self._events)

    # Members

    def start(self, protocol: GroupProtocol, members: int = MEMBERS) -> None:
        for _ in range(members):
            self.join(protocol)
        self.progress()

    def join(self, protocol: GroupProtocol) -> None:
        name = f"{protocol.value}-member-{next(self._numbers)}"
        self._note(f"start {name}")
        where = (self._bootstrap, self.group, self._topic, protocol)
        self.members.append(MemberProcess(*where, name=name, report=self._report))

    def leave(self) -> None:
        """The oldest member leaves the group."""
        member = self.members.pop(0)
        self._note(f"stop {member.name}")
        member.stop()

    def kill(self) -> None:
        """The oldest member is killed; its partitions are free when its session ends."""
        member = self.members.pop(0)
        self._note(f"kill -9 {member.name}")
        member.kill()

    def _note(self, text: str) -> None:
        self._history.add("group", Action.NOTE, text=text)

    # Progress

    def progress(self, *, seconds: float = PROGRESS_SECONDS_MAX) -> None:
        """Wait until every partition has one owner and a new commit."""
        since = time.monotonic()

        def look() -> bool:
            events = self.events()
            fresh = {
                event.partition
                for event in events
                if event.action is MemberAction.COMMIT and event.time > since
            }
            found = owners(events)
            return len(fresh) == len(found) == self._partitions and all(
                len(names) == 1 for names in found.values()
            )

        until(look, seconds=seconds, what=f"group {self.group} commits in every partition")

    # End of the run

    def finish(self, ends: dict[int, int]) -> None:
        """Let the members commit everything up to these offsets, and stop them."""
        self._ends = ends
        until(
            lambda: self._committed() == ends,
            seconds=CATCH_UP_SECONDS_MAX,
            what=f"group {self.group} commits {ends}",
        )
        while self.members:
            self.leave()

    def _committed(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for event in self.events():
            if event.action is MemberAction.COMMIT:
                found[event.partition] = max(found.get(event.partition, 0), event.end)
        return dict(sorted(found.items()))

    def abandon(self) -> None:
        while self.members:
            self.members.pop().kill()

    def check(self) -> list[str]:
        return check_group(self.events(), self._ends)

    @property
    def handovers(self) -> int:
        return sum(event.action is MemberAction.TAKE for event in self.events())
