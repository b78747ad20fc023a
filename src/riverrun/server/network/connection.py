"""One client connection: bytes to frames, frames to the router, responses back in order.

All frames of one read are handled together, and their responses written together. A request whose
response comes later holds a slot, so that responses leave in the order of the requests. Later
requests wait in the buffer meanwhile, as in Kafka, except Produce after Produce. A client that does
not read its responses, or has too many requests in flight, is not read from.

The receive buffer starts small, grows with the received bytes (never with a declared length), and
is released when the connection is idle. uvloop keeps the views that it writes, so no part of this
buffer is ever written or kept: handlers copy what they need.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from riverrun.security.principal import Principal
from riverrun.server.dispatch.context import Peer, client_id_of
from riverrun.server.dispatch.router import Call, Frame, Refused, Router
from riverrun.server.network.tls_acceptor import joined_parts
from riverrun.wire.headers import LENGTH

if TYPE_CHECKING:
    from riverrun.server.network.listener import Listener
    from riverrun.server.security.sasl_router import SaslRouter

BUFFER_BYTES_MIN: Final = 16 * 1024
READ_AHEAD_BYTES_MAX: Final = 256 * 1024
"""A buffer that small requests fill grows up to this size, to take many of them in one read."""
FLUSH_BYTES: Final = 128 * 1024
FRAMES_PER_ITERATION: Final = 256
"""Then other connections run: no iteration of the event loop should take 10 ms."""


class Slot:
    """The position of a response among the responses of a connection."""

    __slots__ = ("call", "future", "is_done", "response")

    def __init__(self, call: Call | None, future: asyncio.Future[Any] | None) -> None:
        self.call = call
        self.future = future
        self.response: Frame | None = None
        self.is_done = False


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol that asyncio or uvloop drives."""

    __slots__ = (
        "_buffer",
        "_end",
        "_guard",
        "_is_encrypted",
        "_is_held",
        "_is_reading",
        "_is_stopping",
        "_is_waiting_for_memory",
        "_is_write_paused",
        "_listener",
        "_memory",
        "_mute_timer",
        "_out",
        "_out_bytes",
        "_request_bytes_max",
        "_router",
        "_slots",
        "_slots_key",
        "_start",
        "_transport",
        "_unsent_bytes",
        "_view",
        "_was_full",
        "awaits_login",
        "client_id",
        "frames",
        "is_closed",
        "last_key",
        "peer",
        "received",
        "sent",
        "software",
    )

    def __init__(self, listener: Listener, listener_name: str, connection_id: int) -> None:
        self._listener = listener
        self._memory = listener.receive_memory
        self._guard = guard = listener.guard(listener_name)
        self._router: Router | SaslRouter = listener.router(listener_name)
        self._request_bytes_max = listener.settings.request_bytes_max
        self._is_encrypted = False
        if guard is not None:
            self._router = guard.router(listener.router(listener_name), self)
            self._is_encrypted = guard.protocol.has_tls
            if guard.protocol.has_sasl:
                self._request_bytes_max = guard.sasl.receive_size_max
        self.awaits_login = guard is not None and guard.protocol.has_sasl
        self.peer = Peer("", listener_name, connection_id)
        self._transport: asyncio.Transport | None = None
        self._buffer: bytearray | None = None
        self._view = memoryview(b"")
        self._start = 0
        self._end = 0
        self._was_full = False
        self._slots: deque[Slot] = deque()
        self._slots_key = -1
        self._out: list[Any] = []
        self._out_bytes = 0
        self._unsent_bytes = 0
        self._is_held = False
        self._mute_timer: asyncio.TimerHandle | None = None
        self._is_reading = True
        self._is_waiting_for_memory = False
        self._is_write_paused = False
        self._is_stopping = False
        self.is_closed = False
        self.frames = 0
        self.received = 0
        self.sent = 0
        self.last_key = -1
        """The API of the last request."""
        self.client_id: str | None = None
        """Of the first request."""
        self.software = ("", "")
        """Name and version of the client's library, if it tells them (KIP-511)."""

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        host = str(address[0]) if address else "unknown"
        self.peer = self.peer._replace(client_host=host)
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            self._listener.tune(raw)
        if not self._listener.admit(self):
            self.is_closed = True
            transport.close()
        elif self._guard is not None:
            principal = self._guard.principal_of(transport, self.peer)
            if principal is None:
                self._refuse(Refused("certificate", "no rule maps the name in the certificate"))
            else:
                self.peer = self.peer._replace(principal=principal)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._listener.remove(self)
        self._memory.forget(self)
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._note_unsent(0)
        self._transport = None
        for slot in self._slots:
            # Cancel pending fetches. Requests that change state run to their end.
            if slot.future is not None and slot.call is not None and slot.call.is_cancellable:
                slot.future.cancel()
        self._slots.clear()
        self._out.clear()
        self._drop_buffer()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self._transport is not None:
            self._note_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._note_unsent(0)
        self._release()

    def _note_unsent(self, count: int) -> None:
        self._listener.send_memory.unsent_bytes += count - self._unsent_bytes
        self._unsent_bytes = count

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._buffer is None:
            self._use_buffer(bytearray(BUFFER_BYTES_MIN))
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        self.received += count
        self._listener.bytes_received.value += count
        buffer = self._buffer
        assert buffer is not None, "received bytes without a buffer"
        self._was_full = self._end == len(buffer)
        if self.is_closed:
            self._start = self._end = 0
        else:
            self._process()

    # Login

    def logged_in(self, principal: Principal) -> None:
        self.peer = self.peer._replace(principal=principal)
        self._request_bytes_max = self._listener.settings.request_bytes_max
        self.awaits_login = False

    def login_failed(self, response: bytes) -> None:
        """Read no more. Respond and close after a delay, which slows down guessing."""
        assert self._guard is not None, "a login on a listener without SASL"
        self._is_stopping = True
        self._set_reading(False)
        delay_s = self._guard.sasl.failure_delay_ms / 1000
        asyncio.get_running_loop().call_later(delay_s, self._end_failed_login, response)

    def _end_failed_login(self, response: bytes) -> None:
        self._add(response)
        self._flush()
        self.close()

    # Requests

    def _process(self) -> None:
        """Handle every complete frame that may begin now, then write the responses."""
        buffer = self._buffer
        last = self.frames + FRAMES_PER_ITERATION
        while buffer is not None and self._end - self._start >= 4:
            size: int = LENGTH.unpack_from(buffer, self._start)[0]
            if not 0 <= size <= self._request_bytes_max:
                kind = "negative_length" if size < 0 else "oversized"
                self._refuse(Refused(kind, f"a frame of {size} bytes"))
                return
            begin = self._start + 4
            stop = begin + size
            if stop > self._end:
                break
            frame = self._view[begin:stop]
            if not self._may_begin(frame):
                self._hold()
                break
            if self.frames == last:
                self._hold()
                self._listener.call_soon(self._release)
                break
            self._start = stop
            self.frames += 1
            if size > 1:
                self.last_key = buffer[begin] << 8 | buffer[begin + 1]
            if self.client_id is None:
                self.client_id = client_id_of(frame)
            try:
                self._begin(frame)
            except Refused as refused:
                self._refuse(refused)
                return
            if self._out_bytes > FLUSH_BYTES:
                self._flush()
        self._flush()
        self._make_room()

    def _may_begin(self, frame: memoryview) -> bool:
        if self._is_write_paused or self._is_stopping or self._mute_timer is not None:
            return False
        if not self._slots:
            return True
        # Two bytes of API key. The router refuses a frame that is too short for them.
        key = frame[0] << 8 | frame[1] if len(frame) >= 2 else -1
        return (
            key == self._slots_key
            and self._router.overlaps(key)
            and len(self._slots) < self._listener.settings.in_flight_max
        )

    def _begin(self, frame: memoryview) -> None:
        response = self._router.handle(frame, self.peer)
        if isinstance(response, Call):
            assert response.wait is not None, "a pending call waits for nothing"
            future = asyncio.ensure_future(response.wait)
            slot = Slot(response, future)
            self._slots.append(slot)
            self._slots_key = response.route.api.key
            self._listener.pending[future] = None
            future.add_done_callback(partial(self._finished, slot))
        elif self._slots:
            slot = Slot(None, None)
            slot.response, slot.is_done = response, True
            self._slots.append(slot)
        elif response is not None:
            self._add(response)

    def _finished(self, slot: Slot, future: asyncio.Future[Any]) -> None:
        self._listener.pending.pop(future, None)
        assert slot.call is not None, "a response came for a request that is not pending"
        try:
            response = self._router.finish(slot.call, future)
        except Refused as refused:
            if not (future.cancelled() and self.is_closed):
                self._refuse(refused)
            return
        if self.is_closed:
            return
        slot.response, slot.is_done = response, True
        while self._slots and self._slots[0].is_done:
            ready = self._slots.popleft().response
            if ready is not None:
                self._add(ready)
        self._flush()
        if self._is_stopping and not self._slots:
            self.close()
        else:
            self._release()

    # Responses

    def _add(self, frame: Frame) -> None:
        if isinstance(frame, bytes):
            self._out.append(frame)
            self._out_bytes += len(frame)
        else:
            self._out += frame
            self._out_bytes += sum(map(len, frame))

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        self._listener.bytes_sent.value += self._out_bytes
        self.sent += self._out_bytes
        self._out = []
        self._out_bytes = 0
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(joined_parts(out) if self._is_encrypted else out)

    # Pausing

    def _hold(self) -> None:
        """Stop reading: the next frame may not begin yet."""
        self._is_held = True
        self._set_reading(False)

    def _release(self) -> None:
        """Process held frames, and resume reading if none is held again."""
        if self._is_held and not self.is_closed:
            self._is_held = False
            self._process()
            self._resume_reading()

    def mute(self, seconds: float) -> None:
        """Begin no request for this time: the client is above its quota. A request that is being
        received stays in the socket. If the connection is muted already, the later end counts."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        if self.is_closed or self._is_stopping:
            return
        if self._mute_timer is not None:
            end = max(end, self._mute_timer.when())
            self._mute_timer.cancel()
        self._mute_timer = loop.call_at(end, self._unmute)
        self._set_reading(False)

    def _unmute(self) -> None:
        self._mute_timer = None
        if self.is_closed:
            return
        if self._is_held:
            self._release()
        else:
            self._resume_reading()

    def _resume_reading(self) -> None:
        """Read again if there is no reason left to wait."""
        is_waiting = self._is_held or self._is_waiting_for_memory or self._is_stopping
        if not is_waiting and self._mute_timer is None:
            self._set_reading(True)

    def _set_reading(self, is_reading: bool) -> None:
        if self._transport is None or is_reading is self._is_reading:
            return
        self._is_reading = is_reading
        if is_reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # The receive buffer

    def _use_buffer(self, buffer: bytearray) -> None:
        old_bytes = 0 if self._buffer is None else len(self._buffer)
        self._memory.used_bytes += len(buffer) - old_bytes
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _drop_buffer(self) -> None:
        if self._buffer is not None:
            size = len(self._buffer)
            self._buffer = None
            self._view = memoryview(b"")
            self._start = self._end = 0
            self._memory.released(self, size)

    def _make_room(self) -> None:
        """Make room for the rest of the frame that the next read continues."""
        buffer = self._buffer
        if buffer is None or self.is_closed:
            return
        capacity, held = len(buffer), self._end - self._start
        if held == 0:
            self._start = self._end = 0
            if capacity > READ_AHEAD_BYTES_MAX or self._memory.exempt is self:
                if not self._memory.may_retain(self):
                    self._drop_buffer()
            elif self._was_full and capacity < READ_AHEAD_BYTES_MAX:
                self._grow(capacity * 2)
            return
        if self._was_full and capacity < READ_AHEAD_BYTES_MAX:
            self._grow(capacity * 2)
            return
        wanted = 4 + (LENGTH.unpack_from(buffer, self._start)[0] if held >= 4 else 0)
        if self._start + wanted <= capacity and self._end < capacity:
            return
        if self._start > 0:
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held
        if self._end == capacity and not self._is_held:
            larger = min(max(wanted, READ_AHEAD_BYTES_MAX), capacity * 2)
            if self._memory.may_grow(self, larger - capacity):
                self._grow(larger)
            else:
                self._is_waiting_for_memory = True
                self._set_reading(False)

    def _grow(self, capacity: int) -> None:
        held = self._end - self._start
        larger = bytearray(capacity)
        larger[:held] = self._view[self._start : self._end]
        self._start, self._end = 0, held
        self._use_buffer(larger)

    def memory_available(self) -> None:
        if self._is_waiting_for_memory and not self.is_closed:
            self._is_waiting_for_memory = False
            self._make_room()
            self._resume_reading()

    def drop_idle_buffer(self) -> None:
        """An idle connection costs no buffer."""
        if self._end == self._start:
            self._drop_buffer()

    # Closing

    @property
    def remote_port(self) -> int | None:
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        return int(address[1]) if address else None

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    @property
    def is_muted(self) -> bool:
        return self._mute_timer is not None

    @property
    def has_partial_frame(self) -> bool:
        return self._end > self._start and not self._is_held

    def _refuse(self, refused: Refused) -> None:
        self._listener.refused(self.peer, refused)
        self._flush()  # earlier requests get their responses
        self.close()

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def begin_stop(self) -> None:
        """Accept no new request. Close when no request is in flight that must be completed."""
        self._is_stopping = True
        calls = [slot.call for slot in self._slots if not slot.is_done and slot.call is not None]
        if all(call.is_cancellable for call in calls):
            self.close()
        else:
            self._set_reading(False)
