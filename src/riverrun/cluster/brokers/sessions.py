"""Broker sessions of the active controller. They are in memory only; a new controller starts over.

A session expires without heartbeats, or ends at once when its broker is proven dead: a connection
is refused, or another incarnation answers in its place. Weaker hints (a broken connection, a
request without a response) only make the broker suspect, because a stopped process still accepts
connections and may continue.

Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from msgspec import Struct

from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.ports.aio import StallCredit

GRACE_HEARTBEATS: Final = 3
"""Heartbeat intervals that every broker gets to find a new controller."""
REPLACED_MAX: Final = 1000
CHECKS_PER_SESSION: Final = 20


class BrokerSession(Struct, kw_only=True):
    """The session of one registration. ``offset`` is the broker's own metadata offset."""

    epoch: int
    contact: float
    offset: int = -1
    leaves_at: int | None = None
    """The metadata offset that all active brokers must reach before this broker may stop."""
    is_heard: bool = False
    """Whether this controller has received a heartbeat; before, the session is an assumption."""
    is_suspect: bool = False
    is_over: bool = False


class Sessions:
    """The sessions of all registered brokers."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._timeout = settings.session_timeout_ms / 1000
        self._heartbeat = settings.heartbeat_interval_ms / 1000
        self._known: dict[NodeId, BrokerSession] = {}
        self._replaced: dict[UUID, None] = {}
        self._stall = StallCredit(tolerance_seconds=self._heartbeat)
        self.check_interval = self._timeout / CHECKS_PER_SESSION
        """How often ``expired`` must be called, in seconds."""

    def __getitem__(self, node: NodeId) -> BrokerSession:
        return self._known[node]

    def get(self, node: NodeId) -> BrokerSession | None:
        return self._known.get(node)

    def clear(self) -> None:
        """Drop all sessions: this node is no longer the active controller."""
        self._known.clear()
        self._replaced.clear()
        self._stall.expect(None)

    def begin(self, image: Image, now: float, contacts: Mapping[NodeId, float]) -> None:
        """Start the sessions of all brokers: this node is the active controller now.

        Sessions start now, or at the last contact for brokers in ``contacts``. Even then a broker
        has GRACE_HEARTBEATS left to find the new controller.
        """
        self.clear()
        for broker in image.brokers.values():
            earliest = now - self._timeout + GRACE_HEARTBEATS * self._heartbeat
            contact = min(now, max(contacts.get(broker.id, now), earliest))
            self._known[broker.id] = BrokerSession(epoch=broker.epoch, contact=contact)
        self._stall.expect(now + self.check_interval)

    def opened(self, node: NodeId, epoch: int, now: float, *, instead_of: UUID | None) -> None:
        """Start the session of a new registration, which may replace an older incarnation."""
        self._known[node] = BrokerSession(epoch=epoch, contact=now)
        if instead_of is not None:
            if len(self._replaced) >= REPLACED_MAX:
                del self._replaced[next(iter(self._replaced))]
            self._replaced[instead_of] = None

    def closed(self, node: NodeId) -> None:
        """Remove the session of an unregistered broker."""
        self._known.pop(node, None)

    def touched(self, node: NodeId, epoch: int, offset: int, now: float) -> BrokerSession:
        """Extend a session by a heartbeat of the latest registration."""
        session = self._known.get(node)
        if session is None or session.epoch != epoch:
            session = self._known[node] = BrokerSession(epoch=epoch, contact=now)
        session.contact = now
        session.offset = max(session.offset, offset)
        session.is_heard = True
        session.is_suspect = session.is_over = False
        return session

    def ended(self, node: NodeId) -> None:
        """End the session of a fenced broker. Its next heartbeat starts it again."""
        session = self._known.get(node)
        if session is not None:
            session.is_over, session.is_suspect, session.leaves_at = True, False, None

    def is_valid(self, node: NodeId, epoch: int, now: float) -> bool:
        session = self._known.get(node)
        return (
            session is not None
            and session.epoch == epoch
            and not session.is_over
            and now - session.contact < self._timeout
        )

    def is_silent(self, node: NodeId, now: float) -> bool:
        """Whether the session of a registered broker has ended. All brokers have one at first, so
        none is silent before this node acts as the active controller."""
        session = self._known.get(node)
        return session is not None and not self.is_valid(node, session.epoch, now)

    def was_replaced(self, incarnation: UUID | None) -> bool:
        """Whether a later incarnation of the same node has registered."""
        return incarnation in self._replaced

    def suspect(self, node: NodeId) -> bool:
        """Make a broker suspect; False if it has no session or was suspect already."""
        session = self._known.get(node)
        if session is None or session.is_over or session.is_suspect:
            return False
        session.is_suspect = True
        return True

    def expired(self, image: Image, now: float) -> list[NodeId]:
        """Unfenced brokers without a heartbeat for a whole session.

        A late call means that this process was stalled, and heartbeats may be unread in its
        sockets. The delay is credited to all sessions, and none expires in that call.
        """
        credit = self._stall.take(now)
        self._stall.expect(now + self.check_interval)
        if credit:
            for session in self._known.values():
                session.contact = min(now, session.contact + credit)
            return []
        return [
            broker.id
            for broker in image.brokers.values()
            if not broker.is_fenced and not self._is_alive(broker.id, broker.epoch, now)
        ]

    def _is_alive(self, node: NodeId, epoch: int, now: float) -> bool:
        session = self._known.get(node)
        if session is None or session.epoch != epoch:
            # Not unfenced by a heartbeat of this session: start one now.
            self._known[node] = BrokerSession(epoch=epoch, contact=now)
            return True
        return now - session.contact < self._timeout

    def lowest_offset(self, image: Image, nodes: Iterable[NodeId]) -> int | None:
        """The metadata offset that all active brokers have reached; None without active brokers."""
        offsets = [
            self._known[node].offset if node in self._known else -1
            for node in nodes
            if image.is_active(node)
        ]
        return min(offsets, default=None)

    def may_leave(self, image: Image, node: NodeId) -> bool:
        """Whether all active brokers have read that a stopping broker leads nothing."""
        session = self._known.get(node)
        if session is None or session.leaves_at is None:
            return False
        lowest = self.lowest_offset(image, image.brokers)
        return lowest is None or lowest >= session.leaves_at
