"""Memory that all client connections of a node share: receive buffers and unsent responses."""

from __future__ import annotations

from typing import Final, Protocol

from riverrun.model.settings import MiB

RESPONSE_SHARE: Final = 4
"""One response takes at most a quarter of the free memory."""
RESPONSE_BYTES_MIN: Final = MiB


class BufferOwner(Protocol):
    """A connection with a receive buffer."""

    def memory_available(self) -> None:
        """Retry to enlarge the buffer."""
        ...


class ReceiveMemory:
    """Accounts for receive buffers, and decides which connections may enlarge theirs.

    Above ``queued_bytes_max`` a single connection may still grow, or many partial requests could
    wait for each other without end. The others wait in order until a buffer is released.
    """

    __slots__ = ("_queued_bytes_max", "_retained_bytes_max", "_waiting", "exempt", "used_bytes")

    def __init__(self, *, queued_bytes_max: int, retained_bytes_max: int) -> None:
        """A negative ``queued_bytes_max`` is no limit."""
        self._queued_bytes_max = queued_bytes_max
        self._retained_bytes_max = retained_bytes_max
        self._waiting: dict[BufferOwner, None] = {}
        self.exempt: BufferOwner | None = None
        """The connection that may exceed the limit."""
        self.used_bytes = 0

    def may_grow(self, owner: BufferOwner, extra_bytes: int) -> bool:
        """Whether a buffer may grow now. If not, ``memory_available`` is called later."""
        limit = self._queued_bytes_max
        if limit < 0 or self.used_bytes + extra_bytes <= limit:
            return True
        if self.exempt is None or self.exempt is owner:
            self.exempt = owner
            return True
        self._waiting[owner] = None
        return False

    def may_retain(self, owner: BufferOwner) -> bool:
        """Whether an empty large buffer may be kept for the next request."""
        is_scarce = 0 <= self._queued_bytes_max < self.used_bytes or self._waiting
        return not (is_scarce or self.exempt is owner or self.used_bytes > self._retained_bytes_max)

    def released(self, owner: BufferOwner, size: int) -> None:
        """A connection has dropped its buffer."""
        self.used_bytes -= size
        if self.exempt is owner:
            self.exempt = None
        if self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.memory_available()

    def forget(self, owner: BufferOwner) -> None:
        """The connection is closed."""
        self._waiting.pop(owner, None)


class SendMemory:
    """Accounts for responses that clients do not read, and limits the next response by it.

    Records stay in memory until the client's socket takes them. A hundred consumers that fetch
    50 MB each and stop reading would hold 5 GB, so responses get smaller the more is unsent. They
    stay useful: each may have a share of the free memory, and one batch at least.
    """

    __slots__ = ("_bytes_max", "unsent_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.unsent_bytes = 0

    def response_bytes_max(self) -> int:
        free_bytes = self._bytes_max - self.unsent_bytes
        return max(free_bytes // RESPONSE_SHARE, RESPONSE_BYTES_MIN)
