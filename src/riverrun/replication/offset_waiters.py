"""Callbacks that wait for an offset, in a queue ordered by offset.

Cancelled waiters are removed lazily, once they make up half of the queue. Otherwise a thousand
producers that time out together would cost a million steps. Waiters for metadata are futures that
fail with exceptions, and rare; ``metadata`` has a class of its own for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import Offset

WaiterCallback = Callable[[ErrorCode], None]
"""Called once, with NONE or an error. It may be called although it was cancelled."""


class OffsetWaiters:
    __slots__ = ("_cancelled", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[Offset, WaiterCallback, bool]] | None = None
        """(offset, callback, waits_for_isr). ``refuse`` does not affect waiters with
        ``waits_for_isr``. None until the first waiter: an empty deque takes 600 bytes, and a node
        has three queues for each of its partitions, most of which no request ever waits for."""
        self._cancelled: dict[WaiterCallback, None] = {}

    def __len__(self) -> int:
        return max(len(self.queue or ()) - len(self._cancelled), 0)

    def add(self, end: Offset, callback: WaiterCallback, *, waits_for_isr: bool = False) -> None:
        """Offsets mostly grow; a smaller one (of a duplicate) is inserted in order."""
        queue = self.queue
        if queue is None:
            queue = self.queue = deque()
        if not queue or queue[-1][0] <= end:
            queue.append((end, callback, waits_for_isr))
            return
        place = len(queue)
        while place > 0 and queue[place - 1][0] > end:
            place -= 1
        queue.insert(place, (end, callback, waits_for_isr))

    def reached(self, offset: int) -> None:
        """Call and remove the waiters up to this offset."""
        queue = self.queue
        while queue and queue[0][0] <= offset:
            queue.popleft()[1](ErrorCode.NONE)
        if not queue:
            self._cancelled.clear()

    def refuse(self, offset: int, code: ErrorCode) -> None:
        """Fail the waiters up to this offset, except those with ``waits_for_isr``."""
        waiting = self.queue or ()
        refused = [waiter for waiter in waiting if waiter[0] <= offset and not waiter[2]]
        if refused:
            self.queue = deque(waiter for waiter in waiting if waiter[0] > offset or waiter[2])
            for _, callback, _ in refused:
                callback(code)

    def fail_all(self, code: ErrorCode) -> None:
        waiting, self.queue = self.queue, None
        self._cancelled.clear()
        for _, callback, _ in waiting or ():
            callback(code)

    def cancel(self, callback: WaiterCallback) -> None:
        self._cancelled[callback] = None
        waiting = self.queue or ()
        if 2 * len(self._cancelled) >= len(waiting):
            cancelled, self._cancelled = self._cancelled, {}
            self.queue = deque(waiter for waiter in waiting if waiter[1] not in cancelled)
