"""The position of a follower, as its leader derives it from the follower's fetches.

A fetch at an offset acknowledges all records below it (flushed, if the topic has
flush.before.ack). A follower was caught up at a moment if it has since reached the log end offset
of that moment, even if the log has grown meanwhile.
"""

from __future__ import annotations

import math

from riverrun.model.ids import NodeId, Offset
from riverrun.replication.isr import NEVER, FollowerStatus, LagWindow

REPEATS_MAX = 4
"""Responses with the same records in a row, after which the leader suspects its own log."""


class Contact:
    """The time of the last fetch in a follower's session. All partitions of the session share it,
    so that a fetch costs nothing for partitions without news.
    """

    __slots__ = ("broker_epoch", "fetched_at")

    def __init__(self, broker_epoch: int, fetched_at: float = NEVER) -> None:
        self.broker_epoch = broker_epoch
        self.fetched_at = fetched_at


class FollowerProgress:
    """One other replica of a partition that this node leads, within one leader epoch."""

    __slots__ = (
        "_repeats",
        "_sample_end",
        "_sampled_at",
        "_served_from",
        "_verified_epoch",
        "broker_epoch",
        "caught_up_at",
        "contact",
        "end_offset",
        "lag",
        "mismatches",
        "node",
        "start_offset",
        "verified_to",
    )

    def __init__(self, node: NodeId, caught_up_at: float = NEVER) -> None:
        self.node = node
        self.end_offset = Offset(-1)
        """-1 until the first fetch of this epoch. Until then it holds back the high watermark."""
        self.start_offset = Offset(-1)
        self.broker_epoch = -1
        self.caught_up_at = caught_up_at
        self.contact: Contact | None = None
        self.lag: LagWindow | None = None
        self._sample_end = 0
        self._sampled_at = NEVER
        self._served_from = Offset(-1)
        self._repeats = 0
        self.verified_to = Offset(-1)
        """Its content was compared with ours up to here (``replication.moves.verification``)."""
        self._verified_epoch = -1
        self.mismatches = 0
        """How often its content differed from ours."""

    def fetched(self, offset: int, start_offset: int, *, leader_end: int, now: float) -> None:
        self.end_offset = Offset(offset)
        self.start_offset = Offset(start_offset)
        if offset < self.verified_to:
            self.forget_verification()  # It was truncated, and copies these records again.
        if offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, now)
        elif offset >= self._sample_end and self._sampled_at > self.caught_up_at:
            self.caught_up_at = self._sampled_at
        self._sample_end, self._sampled_at = leader_end, now

    @property
    def is_verified(self) -> bool:
        """Whether all its content was compared: by this incarnation, and not truncated since."""
        return 0 <= self._verified_epoch == self.broker_epoch

    def verified(self) -> None:
        self._verified_epoch = self.broker_epoch

    def forget_verification(self) -> None:
        self.verified_to = Offset(-1)
        self._verified_epoch = -1

    def served(self, *, leader_end: int, now: float) -> bool:
        """A response with records is sent. If the next fetch acknowledges all of it, the follower
        was caught up now.

        Returns True if the same records were sent several times and never acknowledged.
        """
        if self.end_offset >= self._sample_end:
            self._sample_end, self._sampled_at = leader_end, now
        if self.end_offset != self._served_from:
            self._served_from, self._repeats = self.end_offset, 0
            return False
        self._repeats += 1
        return self._repeats == REPEATS_MAX

    def note_contact(self, leader_end: int, until: float = math.inf) -> None:
        """A follower at the end of the log was caught up at its last fetch.

        ``until`` is the last time at which the log was known to end there.
        """
        contact = self.contact
        if contact is not None and self.end_offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, min(contact.fetched_at, until))

    def credit_stall(self, seconds: float) -> None:
        """Extend the deadlines by a stall of this node, during which no fetch could arrive."""
        self.caught_up_at += seconds
        if self.lag is not None:
            self.lag = LagWindow(self.lag.since + seconds, self.lag.messages)

    def status(self) -> FollowerStatus:
        return FollowerStatus(self.node, self.end_offset, self.caught_up_at, self.lag)

    def lag_ms(self, leader_end: int, now: float) -> float:
        if self.end_offset >= leader_end:
            return 0.0
        return 1000 * (now - self.caught_up_at) if self.caught_up_at > NEVER else -1.0
