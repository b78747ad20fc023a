"""Who waits for an offset to be reached: callers in the order of their offsets.

To wait costs an entry, and to be woken takes it from the front. Who gives up is only noted, and
taken out when half of the entries are of that kind: a thousand producers whose time is up together
must not cost a million steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import Offset

Told = Callable[[ErrorCode], None]
"""Called once with the outcome; one that has given up may be called all the same."""


class Waits:
    __slots__ = ("_given_up", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[Offset, Told, bool]] = deque()
        """Offset, whom to call, and whether it waits however long it takes."""
        self._given_up: dict[Told, None] = {}

    def __len__(self) -> int:
        return max(len(self.queue) - len(self._given_up), 0)

    def add(self, end: Offset, told: Told, *, is_patient: bool = False) -> None:
        """Offsets mostly grow; one that does not (a duplicate) is put where it belongs."""
        queue = self.queue
        if not queue or queue[-1][0] <= end:
            queue.append((end, told, is_patient))
            return
        place = len(queue)
        while place > 0 and queue[place - 1][0] > end:
            place -= 1
        queue.insert(place, (end, told, is_patient))

    def reached(self, offset: int) -> None:
        queue = self.queue
        while queue and queue[0][0] <= offset:
            queue.popleft()[1](ErrorCode.NONE)
        if not queue:
            self._given_up.clear()

    def refuse(self, offset: int, why: ErrorCode) -> None:
        """Tell whoever is reached, except the patient, that it does not count."""
        waiting = self.queue
        told = [wait for wait in waiting if wait[0] <= offset and not wait[2]]
        if told:
            self.queue = deque(wait for wait in waiting if wait[0] > offset or wait[2])
            for _, callback, _ in told:
                callback(why)

    def fail(self, why: ErrorCode) -> None:
        """It will not be reached, for anybody."""
        waiting, self.queue = self.queue, deque()
        self._given_up.clear()
        for _, told, _ in waiting:
            told(why)

    def give_up(self, told: Told) -> None:
        self._given_up[told] = None
        if 2 * len(self._given_up) >= len(self.queue):
            gone, self._given_up = self._given_up, {}
            self.queue = deque(wait for wait in self.queue if wait[1] not in gone)
