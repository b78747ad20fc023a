"""Appends batches of transactions and markers to a partition of ``__consumer_offsets``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from riverrun.coordinator.log import TransactionalAppend
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.replication.markers import append_markers
from riverrun.replication.partition import Partition
from riverrun.replication.verification_attempts import Attempt, append_transactional
from riverrun.storage.producers import AppendOrigin

ACKS_ALL: Final = -1


def append_together(
    partition: Partition, appends: Sequence[TransactionalAppend], now_ms: int
) -> list[ErrorCode]:
    """Append in order. Returns for each NONE, or the code with which it was refused."""
    codes: list[ErrorCode] = []
    for is_marker, group in groupby(appends, key=lambda one: one.marker is not None):
        if is_marker:
            codes += _append_markers(partition, list(group), now_ms)
        else:
            codes += [_append_batch(partition, one, now_ms) for one in group]
    return codes


def _append_markers(
    partition: Partition, group: list[TransactionalAppend], now_ms: int
) -> list[ErrorCode]:
    markers = [one.marker for one in group if one.marker is not None]
    try:
        appended = append_markers(partition, markers, now_ms=now_ms)
    except KafkaError as error:
        return [error.code] * len(markers)
    return [ErrorCode.NONE if error is None else error.code for error in appended.errors]


def _append_batch(partition: Partition, one: TransactionalAppend, now_ms: int) -> ErrorCode:
    attempt = one.attempt
    assert attempt is None or isinstance(attempt, Attempt), f"unexpected {attempt!r}"
    try:
        append_transactional(
            partition,
            bytearray(one.batch),
            attempt,
            acks=ACKS_ALL,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
        )
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
