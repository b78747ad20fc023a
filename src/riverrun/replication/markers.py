"""Appends transaction markers to a partition that this node leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from riverrun.model.errors import KafkaError
from riverrun.model.ids import NO_EPOCH, Offset
from riverrun.replication.isr import not_enough_replicas
from riverrun.replication.partition import Partition
from riverrun.storage.markers import NewMarker


class AppendedMarkers(NamedTuple):
    end: Offset
    """The markers are committed once the high watermark reaches it."""
    errors: list[KafkaError | None]
    """For each marker the error with which it was refused, in their order."""


def append_markers(
    partition: Partition, markers: Sequence[NewMarker], *, now_ms: int
) -> AppendedMarkers:
    """Append the valid ones of some markers, in one write if no producer has several.

    Raises KafkaError or OSError if none was appended.
    """
    partition.check_leader(NO_EPOCH)
    in_sync, minimum = len(partition.isr), partition.min_in_sync()
    if in_sync < minimum:
        raise not_enough_replicas(partition.name, in_sync, minimum)
    log = partition.log
    errors: list[KafkaError | None] = []
    collected: dict[int, NewMarker] = {}

    def write() -> None:
        if collected:
            appended = log.append_markers(
                list(collected.values()), leader_epoch=partition.leader_epoch, now_ms=now_ms
            )
            for marker in collected.values():
                partition.attempts.marked(marker)
            collected.clear()
            partition.appended(appended.size_bytes)

    for marker in markers:
        if marker.producer_id in collected:
            write()  # the second is checked against the state after the first
        try:
            log.producers.check_marker(marker)
        except KafkaError as error:
            errors.append(error)
        else:
            collected[marker.producer_id] = marker
            errors.append(None)
    write()
    return AppendedMarkers(log.end_offset, errors)
