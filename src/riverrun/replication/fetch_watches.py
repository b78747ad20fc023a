"""Fetches that a partition informs about changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from riverrun.model.ids import NodeId
from riverrun.replication.readable_bytes import NewlyReadable

if TYPE_CHECKING:
    from riverrun.replication.partition import Partition


class FetchWait(Protocol):
    """A fetch that waits for records."""

    def progressed(self, partition: Partition, readable: NewlyReadable) -> None:
        """More bytes can be read."""
        ...

    def interrupted(self) -> None:
        """The role of the replica changed: respond now."""
        ...


class FollowerWatch(Protocol):
    """One partition of a follower's fetch session."""

    node: NodeId

    def replaced(self) -> None:
        """The follower now fetches this partition in another session."""
        ...

    def changed(self, *, is_urgent: bool) -> None:
        """The follower has something to fetch. If it is urgent, respond at once."""
        ...
