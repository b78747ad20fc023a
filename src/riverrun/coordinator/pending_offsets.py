"""Offsets that open transactions have committed, until the marker of each transaction.

Several transactions and plain commits may write the offset of one partition. The record with the
highest position in the log wins, whatever the order of the markers. So a later record that becomes
valid supersedes earlier pending ones: their markers then change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from riverrun.coordinator.records import CommittedOffset, OffsetRecord

Key = tuple[str, int]
"""Topic and partition."""


class _Pending(Struct):
    position: int
    value: CommittedOffset
    is_superseded: bool = False


class EndedOffset(NamedTuple):
    """An offset of a transaction that ended."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None
    """None if a later record has superseded it."""
    position: int


class PendingOffsets:
    """The pending offsets of all groups of one partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Key, dict[int, _Pending]]] = {}
        """By group, partition and producer id."""
        self._producers: dict[int, dict[tuple[str, Key], None]] = {}
        self._position = 0

    @property
    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._groups.get(group_id, ())

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    def keys_of(self, group_id: str) -> list[Key]:
        return list(self._groups.get(group_id, ()))

    def of_topics(self, names: Mapping[str, None]) -> list[tuple[str, Key]]:
        return [
            (group_id, key)
            for group_id, keys in self._groups.items()
            for key in keys
            if key[0] in names
        ]

    def add(self, producer_id: int, record: OffsetRecord) -> None:
        """Replay a record of a transaction. A tombstone in a transaction has no meaning."""
        if record.value is None:
            return
        self._position += 1
        key = (record.topic, record.partition)
        producers = self._groups.setdefault(record.group_id, {}).setdefault(key, {})
        producers[producer_id] = _Pending(self._position, record.value)
        self._producers.setdefault(producer_id, {})[record.group_id, key] = None

    def supersede(self, group_id: str, key: Key, position: int | None = None) -> None:
        """A record became valid that is later than the pending ones, or those below a position."""
        for pending in self._groups.get(group_id, {}).get(key, {}).values():
            if position is None or pending.position < position:
                pending.is_superseded = True

    def drop(self, group_id: str, key: Key) -> None:
        """A tombstone removes pending offsets too."""
        for producer_id in list(self._groups.get(group_id, {}).get(key, ())):
            self._remove(producer_id, group_id, key)
            if not self._producers[producer_id]:
                del self._producers[producer_id]

    def end(self, producer_id: int) -> list[EndedOffset]:
        """Remove and return the pending offsets of a producer, in the order of their keys."""
        ended = []
        for group_id, key in list(self._producers.get(producer_id, ())):
            pending = self._remove(producer_id, group_id, key)
            value = None if pending.is_superseded else pending.value
            ended.append(EndedOffset(group_id, *key, value, pending.position))
        self._producers.pop(producer_id, None)
        return ended

    def _remove(self, producer_id: int, group_id: str, key: Key) -> _Pending:
        del self._producers[producer_id][group_id, key]
        keys = self._groups[group_id]
        pending = keys[key].pop(producer_id)
        if not keys[key]:
            del keys[key]
            if not keys:
                del self._groups[group_id]
        return pending
