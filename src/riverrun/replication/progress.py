"""How far a follower has come, as its leader sees it by the follower's fetches.

A fetch at an offset says that all below is held (and synced, where the topic asks for that). A
follower counts as caught up at a moment when it has reached the end that the log had at that
moment, though the log has grown since.
"""

from __future__ import annotations

from riverrun.model.ids import NodeId, Offset
from riverrun.replication.isr import NEVER, LagWindow, Standing

REPEATS_MAX = 4
"""Answers that a follower may lose before we wonder whether they are sound."""


class Contact:
    """When a follower's session was heard of last. Shared by all its partitions, so that a fetch
    costs nothing for those in which nothing happened.
    """

    __slots__ = ("broker_epoch", "fetched_at")

    def __init__(self, broker_epoch: int, fetched_at: float = NEVER) -> None:
        self.broker_epoch = broker_epoch
        self.fetched_at = fetched_at


class Follower:
    """One other replica of a partition that we lead, within one leader epoch."""

    __slots__ = (
        "_repeats",
        "_sample_end",
        "_sampled_at",
        "_served_from",
        "broker_epoch",
        "caught_up_at",
        "contact",
        "end_offset",
        "lag",
        "node",
        "start_offset",
    )

    def __init__(self, node: NodeId, caught_up_at: float = NEVER) -> None:
        self.node = node
        self.end_offset = Offset(-1)
        """Unknown until it fetches in this epoch: till then it holds the high watermark."""
        self.start_offset = Offset(-1)
        self.broker_epoch = -1
        self.caught_up_at = caught_up_at
        self.contact: Contact | None = None
        self.lag: LagWindow | None = None
        self._sample_end = 0
        self._sampled_at = NEVER
        self._served_from = Offset(-1)
        self._repeats = 0

    def fetched(self, offset: int, start_offset: int, *, leader_end: int, now: float) -> None:
        self.end_offset = Offset(offset)
        self.start_offset = Offset(start_offset)
        if offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, now)
        elif offset >= self._sample_end and self._sampled_at > self.caught_up_at:
            self.caught_up_at = self._sampled_at
        self._sample_end, self._sampled_at = leader_end, now

    def served(self, *, leader_end: int, now: float) -> bool:
        """An answer leaves: whoever comes back with all of it was caught up as of now.

        Whether it was sent the same again and again, and never took it.
        """
        if self.end_offset >= self._sample_end:
            self._sample_end, self._sampled_at = leader_end, now
        if self.end_offset != self._served_from:
            self._served_from, self._repeats = self.end_offset, 0
            return False
        self._repeats += 1
        return self._repeats == REPEATS_MAX

    def look(self, leader_end: int) -> None:
        """With nothing to fetch, to have been heard of is to be caught up."""
        contact = self.contact
        if (
            contact is not None
            and self.end_offset >= leader_end
            and contact.fetched_at > self.caught_up_at
        ):
            self.caught_up_at = contact.fetched_at

    def credit(self, seconds: float) -> None:
        """We ourselves stood still: nobody could reach us."""
        self.caught_up_at += seconds
        if self.lag is not None:
            self.lag = LagWindow(self.lag.since + seconds, self.lag.messages)

    def standing(self) -> Standing:
        return Standing(self.node, self.end_offset, self.caught_up_at, self.lag)

    def lag_ms(self, leader_end: int, now: float) -> float:
        if self.end_offset >= leader_end:
            return 0.0
        return 1000 * (now - self.caught_up_at) if self.caught_up_at > NEVER else -1.0
