"""One direction of a connection, which delivers bytes in order.

Like uvloop, it keeps a view of written data until it is delivered. A checksum is compared when the
last byte arrives, which detects a sender that reuses its buffer too early.
"""

from __future__ import annotations

import errno
import zlib
from collections import deque
from typing import TYPE_CHECKING

from riverrun.simulation.failures import BufferReused

if TYPE_CHECKING:
    from riverrun.simulation.net.network import SimulatedNetwork
    from riverrun.simulation.net.transport import NodeTransport


class PendingWrite:
    """One write: a view of the sender's buffer and its checksum at the time of the write."""

    __slots__ = ("_checksum", "position", "view")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.view = memoryview(data).cast("B")
        self.position = 0
        self._checksum = None if isinstance(data, bytes) else zlib.crc32(self.view)

    def is_unchanged(self) -> bool:
        return self._checksum is None or zlib.crc32(self.view) == self._checksum


class Stream:
    """One direction of a connection.

    Bytes wait at the source (``_unsent``) while the window is full. Then they are in flight, and
    then they wait for the target to read them. A stream whose link is blocked stalls.
    """

    def __init__(
        self, network: SimulatedNetwork, source: NodeTransport, target: NodeTransport
    ) -> None:
        self._network = network
        self._world = network.world
        self.source = source
        self.target = target
        self.unsent_bytes = 0
        self._unsent: deque[PendingWrite] = deque()
        self._flying: deque[tuple[PendingWrite, int, int]] = deque()
        self._landings = 0
        self._unread_bytes = 0
        self._arrives_last = 0.0
        self._is_stalled = False
        self._stalled_at = 0.0
        self._ending: BaseException | None = None
        self._has_ending = False
        self._has_ended = False

    # Sending

    def send(self, data: bytes | bytearray | memoryview) -> None:
        self._unsent.append(PendingWrite(data))
        self.unsent_bytes += len(self._unsent[-1].view)
        self.pump()

    def end(self, error: BaseException | None) -> None:
        """End the stream after all sent bytes, with EOF or a reset."""
        if not self._has_ending:
            self._has_ending, self._ending = True, error
            self.pump()

    def drop_unsent(self) -> None:
        self._unsent.clear()
        self.unsent_bytes = 0

    def pump(self) -> None:
        """Send as much as the window allows."""
        room = self._network.conditions.window_bytes - self._unread_bytes
        while self._unsent and room > 0:
            written = self._unsent[0]
            start = written.position
            size = self._network.piece(min(len(written.view) - start, room))
            written.position = end = start + size
            if end == len(written.view):
                self._unsent.popleft()
            self.unsent_bytes -= size
            self._unread_bytes += size
            room -= size
            self._flying.append((written, start, end))
            self._schedule_landing(size)
        if self._has_ending and not self._unsent and not self._has_ended:
            self._has_ended = True
            self._schedule_landing(0)
        self.source.sent()

    def _schedule_landing(self, size: int) -> None:
        delay = self._network.delay(self.source.host.name, self.target.host.name, size)
        self._arrives_last = max(self._arrives_last, self._world.now + delay)
        self._landings += 1
        self._world.at(self._arrives_last, self._land)

    # Arriving

    def _land(self) -> None:
        if self._landings == 0:
            return  # already delivered when a stall ended
        if not self._network.passes(self.source.host.name, self.target.host.name):
            self._stall()
        if self._is_stalled:
            return
        self._landings -= 1
        self._deliver_one()

    def _deliver_one(self) -> None:
        if not self._flying:
            if self._has_ended:
                self.target.ended(self._ending)
                self._network.remove(self)
            return
        written, start, end = self._flying.popleft()
        if self.target.is_gone:
            # The target process is gone: its kernel responds with a reset.
            delay = self._network.delay(self.target.host.name, self.source.host.name)
            error = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            self._world.after(delay, self.source.lose, error)
            self._network.remove(self)
            return
        if end == len(written.view) and not written.is_unchanged():
            sender = self.source.host.name
            reused = f"{sender} changed {len(written.view)} bytes after write() and before delivery"
            self._world.fail(BufferReused(reused))
        data = bytes(written.view[start:end])
        self._world.record(
            f"arrive {self.source.host.name} {self.target.host.name} {len(data)} {zlib.crc32(data)}"
        )
        self.target.receive(data)

    def consumed(self, size: int) -> None:
        """Open the window after the target has read ``size`` bytes."""
        self._unread_bytes -= size
        if self._unsent:
            delay = self._network.delay(self.target.host.name, self.source.host.name)
            self._world.after(delay, self.pump)

    # Stalling

    def _stall(self) -> None:
        if not self._is_stalled:
            self._is_stalled = True
            self._stalled_at = now = self._world.now
            self._world.after(self._network.conditions.give_up_after, self._give_up, now)

    def unstall(self) -> None:
        """Retransmit waiting bytes a little later, because the link may work again."""
        if self._is_stalled:
            delay = self._network.rng.uniform(0, self._network.conditions.retransmit)
            self._world.after(delay, self._resume)

    def _resume(self) -> None:
        passes = self._network.passes(self.source.host.name, self.target.host.name)
        if not self._is_stalled or not passes:
            return
        self._is_stalled = False
        waiting, self._landings = self._landings, 0
        for _ in range(waiting):
            self._deliver_one()

    def _give_up(self, stalled_at: float) -> None:
        if self._is_stalled and self._stalled_at == stalled_at:
            self.source.lose(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    # Broken connections and stopped processes

    def abandon(self) -> None:
        """Drop unsent bytes, because the source saw the connection break."""
        self.drop_unsent()
        self._network.remove(self)

    def source_died(self, *, announce: bool) -> None:
        """The source process stopped; bytes that its kernel had accepted still arrive."""
        self.source.is_gone = True
        self.drop_unsent()
        if announce:
            is_reset = self.source.has_unread or self._network.rng.random() < 0.5
            error = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            self.end(error if is_reset else None)
