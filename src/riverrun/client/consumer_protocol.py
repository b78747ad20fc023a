"""The messages that members of a consumer group exchange inside JoinGroup and SyncGroup.

Subscriptions (topics) and assignments (partitions), in Kafka's encoding. We write version 0, which
every client reads. Later versions append fields for cooperative and sticky assignors, so we read
the beginning of any version. The bytes come from other clients: malformed ones raise
``NotConsumerProtocol``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

Assignment = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION = 0
OWNED_SINCE: Final = 1
RACK_SINCE: Final = 3
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
    return _MessageReader(data).partitions()


def read_assignment_user_data(data: bytes) -> bytes:
    """The bytes that a client's own assignor added to an assignment."""
    if not data:
        return b""
    reader = _MessageReader(data)
    reader.partitions()
    return reader.optional_bytes()


class MemberSubscription(NamedTuple):
    """A member's subscription with the fields of later versions."""

    topics: tuple[str, ...]
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The partitions that the member has (version 1)."""
    rack_id: str | None = None
    """Version 3."""


def read_member_subscription(data: bytes) -> MemberSubscription:
    reader = _MessageReader(data)
    topics = tuple(reader.text() for _ in range(reader.count(item_bytes_min=2)))
    reader.optional_bytes()
    if reader.version < OWNED_SINCE:
        return MemberSubscription(topics)
    owned = tuple(reader.partitions().items())
    if reader.version < RACK_SINCE:
        return MemberSubscription(topics, owned)
    reader.int32()  # the generation of the owned partitions
    return MemberSubscription(topics, owned, reader.optional_text())


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


class _MessageReader:
    """Checks the version and reads the fields after it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.version = self._number(_INT16)
        if self.version < 0:
            raise NotConsumerProtocol(f"version {self.version}")

    def int32(self) -> int:
        return self._number(_INT32)

    def count(self, *, item_bytes_min: int) -> int:
        count = self.int32()
        if not 0 <= count * item_bytes_min <= len(self._data) - self._at:
            raise NotConsumerProtocol(f"{count} items in {len(self._data) - self._at} bytes")
        return count

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for _ in range(self.count(item_bytes_min=6)):
            topic = self.text()
            count = self.count(item_bytes_min=4)
            found[topic] = tuple(self.int32() for _ in range(count))
        return found

    def optional_bytes(self) -> bytes:
        """Bytes after the topics; a null is read as empty, as is their absence."""
        if self._at == len(self._data):
            return b""
        size = max(self.int32(), 0)
        if self._at + size > len(self._data):
            raise NotConsumerProtocol(f"{size} bytes at byte {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def optional_text(self) -> str | None:
        return None if self._data[self._at : self._at + 2] == b"\xff\xff" else self.text()

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
