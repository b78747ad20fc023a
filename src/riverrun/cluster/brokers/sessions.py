"""Which brokers are alive, as far as the active controller can tell. Soft state: nothing of it is
stored, and a new controller begins anew.

A session ends when no heartbeat came for too long, or at once when its broker is proven dead: a
connection that is refused, or another incarnation in its place. Anything less (a broken connection,
a question without an answer) only makes the broker suspect, for a stopped process still accepts
connections and may go on.

Times are those of the monotonic clock, in seconds.
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
"""What a broker gets at least to find a new controller, however long it was silent before."""
REPLACED_MAX: Final = 1000


class Session(Struct, kw_only=True):
    """One registration of a broker. ``offset`` is how far it says to have read the metadata."""

    epoch: int
    contact: float
    offset: int = -1
    leaves_at: int | None = None
    """The metadata offset that others must reach before a leaving broker may go."""
    is_suspect: bool = False
    is_over: bool = False


class Sessions:
    def __init__(self, settings: ControllerSettings) -> None:
        self._timeout = settings.session_timeout_ms / 1000
        self._heartbeat = settings.heartbeat_interval_ms / 1000
        self._known: dict[NodeId, Session] = {}
        self._replaced: dict[UUID, None] = {}
        self._lateness = StallCredit(tolerance_seconds=self._heartbeat)

    def __getitem__(self, node: NodeId) -> Session:
        return self._known[node]

    def get(self, node: NodeId) -> Session | None:
        return self._known.get(node)

    def clear(self) -> None:
        """We are not the controller any more."""
        self._known.clear()
        self._replaced.clear()
        self._lateness.expect(None)

    def begin(self, image: Image, now: float, heard: Mapping[NodeId, float]) -> None:
        """We are the controller now. Everybody gets a full session, but for those of ``heard``:
        theirs began at that time, and leaves them at least the time to find us."""
        self.clear()
        for broker in image.brokers.values():
            earliest = now - self._timeout + GRACE_HEARTBEATS * self._heartbeat
            contact = min(now, max(heard.get(broker.id, now), earliest))
            self._known[broker.id] = Session(epoch=broker.epoch, contact=contact)
        self._lateness.expect(now)

    def opened(self, node: NodeId, epoch: int, now: float, *, instead_of: UUID | None) -> None:
        """A broker has registered, perhaps in the place of an older incarnation."""
        self._known[node] = Session(epoch=epoch, contact=now)
        if instead_of is not None:
            if len(self._replaced) >= REPLACED_MAX:
                del self._replaced[next(iter(self._replaced))]
            self._replaced[instead_of] = None

    def closed(self, node: NodeId) -> None:
        """A broker is registered no more."""
        self._known.pop(node, None)

    def touched(self, node: NodeId, epoch: int, offset: int, now: float) -> Session:
        """A heartbeat of the latest registration has come."""
        session = self._known.get(node)
        if session is None or session.epoch != epoch:
            session = self._known[node] = Session(epoch=epoch, contact=now)
        session.contact = now
        session.offset = max(session.offset, offset)
        session.is_suspect = session.is_over = False
        return session

    def ended(self, node: NodeId) -> None:
        """A broker was fenced; whatever comes from it begins the session anew."""
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

    def was_replaced(self, incarnation: UUID | None) -> bool:
        """Whether a later incarnation of the same node has registered since."""
        return incarnation in self._replaced

    def suspect(self, node: NodeId) -> bool:
        """Whether a hint is news: the broker has a session and was not suspect yet."""
        session = self._known.get(node)
        if session is None or session.is_over or session.is_suspect:
            return False
        session.is_suspect = True
        return True

    def expired(self, image: Image, now: float, interval: float) -> list[NodeId]:
        """Unfenced brokers that were silent for too long. To be asked every ``interval``.

        Whoever asks late has been stalled itself: heartbeats may lie unread in its sockets. The
        gap is credited to everybody, and one round of input passes before the next judgement.
        """
        late = self._lateness.take(now)
        self._lateness.expect(now + interval)
        if late:
            for session in self._known.values():
                session.contact = min(now, session.contact + late)
            return []
        return [
            broker.id
            for broker in image.brokers.values()
            if not broker.is_fenced and not self._is_alive(broker.id, broker.epoch, now)
        ]

    def _is_alive(self, node: NodeId, epoch: int, now: float) -> bool:
        session = self._known.get(node)
        if session is None or session.epoch != epoch:
            # Unfenced by another hand than a heartbeat's; from here on it must send them.
            self._known[node] = Session(epoch=epoch, contact=now)
            return True
        return now - session.contact < self._timeout

    def lowest_offset(self, image: Image, nodes: Iterable[NodeId]) -> int | None:
        """How far all of the active brokers have read the metadata; None: there is none."""
        offsets = [
            self._known[node].offset if node in self._known else -1
            for node in nodes
            if image.is_active(node)
        ]
        return min(offsets, default=None)

    def may_leave(self, image: Image, node: NodeId) -> bool:
        """Whether everybody has read that a leaving broker leads nothing."""
        session = self._known.get(node)
        if session is None or session.leaves_at is None:
            return False
        lowest = self.lowest_offset(image, image.brokers)
        return lowest is None or lowest >= session.leaves_at
