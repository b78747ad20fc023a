"""Refuses markers that were delayed on a replaced connection of a coordinator.

A coordinator that gets no response in time repeats its markers on a new connection. The network may
still deliver the first request, when the next transaction of the producer has begun. In transaction
version 1 that one has the same epoch, so the marker would end it too early: a torn transaction. So
this node remembers for each producer the newest connection that delivered its markers. A request on
an older one is refused, and its connection is closed.

Markers of another coordinator epoch come from another node or term, whose connections may be older;
the partition refuses those of an earlier epoch. An administrator's marker counts as newest as well.
Then the coordinator is disconnected, connects again and repeats its markers: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from riverrun.replication.verification_attempts import EPOCH_PER_TRANSACTION_SINCE
from riverrun.wire.messages.write_txn_markers_request import WritableTxnMarker

PRODUCERS_MAX: Final = 100_000
"""Producers remembered; the one whose markers are oldest is forgotten first."""


class _Delivery(NamedTuple):
    coordinator_epoch: int
    connection: int


class MarkerConnections:
    """The newest connection that delivered markers, by producer id."""

    def __init__(self) -> None:
        self._newest: dict[int, _Delivery] = {}

    def admit(self, markers: Iterable[WritableTxnMarker], connection: int) -> bool:
        """Note a request. False if one of its markers came on a newer connection before."""
        old = [marker for marker in markers if _needs_order(marker)]
        for marker in old:
            known = self._newest.get(marker.producer_id)
            if (
                known is not None
                and known.coordinator_epoch == marker.coordinator_epoch
                and connection < known.connection
            ):
                return False
        for marker in old:
            self._newest.pop(marker.producer_id, None)  # the dict is in the order of deliveries
            self._newest[marker.producer_id] = _Delivery(marker.coordinator_epoch, connection)
        while len(self._newest) > PRODUCERS_MAX:
            del self._newest[next(iter(self._newest))]
        return True


def _needs_order(marker: WritableTxnMarker) -> bool:
    return marker.transaction_version < EPOCH_PER_TRANSACTION_SINCE
