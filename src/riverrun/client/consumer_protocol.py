"""The messages that members of a consumer group exchange inside JoinGroup and SyncGroup.

Subscriptions (topics) and assignments (partitions), in Kafka's encoding. We write version 0, which
every client reads. Later versions append fields for cooperative and sticky assignors, so we read
the beginning of any version. The bytes come from other clients: malformed ones raise
``NotConsumerProtocol``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

Assignment = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION = 0
_NO_USER_DATA = _INT32.pack(-1)


class NotConsumerProtocol(ValueError):
    """The bytes are not a subscription or assignment; the group may have another protocol type."""


def write_subscription(topics: Iterable[str]) -> bytes:
    names = sorted(topics)
    parts = [_INT16.pack(_VERSION), _INT32.pack(len(names)), *map(_text, names), _NO_USER_DATA]
    return b"".join(parts)


def read_subscription(data: bytes) -> tuple[str, ...]:
    """The topics that a member subscribes to."""
    reader = _MessageReader(data)
    return tuple(reader.text() for _ in range(reader.count(item_bytes_min=2)))


def write_assignment(assignment: Assignment) -> bytes:
    parts = [_INT16.pack(_VERSION), _INT32.pack(len(assignment))]
    for topic, partitions in sorted(assignment.items()):
        parts += [_text(topic), _INT32.pack(len(partitions)), *map(_INT32.pack, partitions)]
    return b"".join([*parts, _NO_USER_DATA])


def read_assignment(data: bytes) -> dict[str, tuple[int, ...]]:
    """The partitions assigned to a member. Empty bytes are an empty assignment."""
    if not data:
        return {}
    reader = _MessageReader(data)
    assignment = {}
    for _ in range(reader.count(item_bytes_min=6)):
        topic = reader.text()
        count = reader.count(item_bytes_min=4)
        assignment[topic] = tuple(reader.int32() for _ in range(count))
    return assignment


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


class _MessageReader:
    """Checks the version and reads the fields after it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        version = self._number(_INT16)
        if version < 0:
            raise NotConsumerProtocol(f"version {version}")

    def int32(self) -> int:
        return self._number(_INT32)

    def count(self, *, item_bytes_min: int) -> int:
        count = self.int32()
        if not 0 <= count * item_bytes_min <= len(self._data) - self._at:
            raise NotConsumerProtocol(f"{count} items in {len(self._data) - self._at} bytes")
        return count

    def text(self) -> str:
        size = self._number(_INT16)
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise NotConsumerProtocol(f"a string of {size} bytes")
        try:
            text = self._data[self._at : end].decode()
        except UnicodeDecodeError as error:
            raise NotConsumerProtocol(str(error)) from None
        self._at = end
        return text

    def _number(self, form: struct.Struct) -> int:
        if self._at + form.size > len(self._data):
            raise NotConsumerProtocol(f"truncated at byte {self._at}")
        number: int = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return number
