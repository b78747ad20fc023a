"""The records of ``__consumer_offsets``: values for the state machines, Kafka's bytes for the log.

Group records are rare and use the generated schema. Offset records are written by every commit and
read by the million when a partition is loaded, so they are packed by hand; a property test compares
both. Versions are those that Kafka 4.3 writes: groups 3, offsets 4, or offsets 1 if the client set
a retention time.
"""

from __future__ import annotations

import struct
from uuid import UUID

from msgspec import Struct

from riverrun.coordinator.consumer.records import (
    CONSUMER_KEYS,
    ConsumerRecord,
    decode_consumer,
    encode_consumer,
)
from riverrun.coordinator.log import InTransaction, TransactionEnd
from riverrun.coordinator.schema.group_metadata_key import GroupMetadataKey
from riverrun.coordinator.schema.group_metadata_value import GroupMetadataValue, MemberMetadata
from riverrun.wire.stored import (
    UnknownRecord,
    read_int16,
    read_key,
    read_value,
    versions,
    write_key,
    write_value,
)

LEGACY_OFFSET_KEY = 0
OFFSET_KEY = 1
GROUP_KEY = 2
GROUP_VERSION = 3
CONSUMER_VERSION = 0
TEXT_BYTES_MAX = 2**15 - 1

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_OFFSET_KEY_HEAD = struct.Struct(">hh")
_V1_HEAD = struct.Struct(">hqh")
_V1_TAIL = struct.Struct(">qq")
_V4_HEAD = struct.Struct(">hqi")
_LONG = struct.Struct(">q")
_NO_TAGS = b"\x00"
_TOPIC_ID_TAG = b"\x01\x00\x10"  # one tagged field, number 0, of sixteen bytes


class StoredMember(Struct, frozen=True, kw_only=True):
    """A member of a classic group as stored in the log."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(Struct, frozen=True, kw_only=True):
    """A classic group as stored in the log: empty, or stable in a generation."""

    protocol_type: str | None
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int | None
    members: tuple[StoredMember, ...]


class CommittedOffset(Struct, frozen=True):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: UUID | None


class GroupRecord(Struct, frozen=True):
    """The state of a group; None deletes it."""

    group_id: str
    value: StoredGroup | None


class OffsetRecord(Struct, frozen=True):
    """The committed offset of a partition; None deletes it."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


StoredRecord = GroupRecord | OffsetRecord | ConsumerRecord
CoordinatorRecord = StoredRecord | InTransaction | TransactionEnd


class UnknownKind(Exception):
    """A record type or version that this version does not know; the log keeps it."""


def encode(record: StoredRecord) -> tuple[bytes, bytes | None]:
    """(key, value) as Kafka writes them; a tombstone has no value."""
    if isinstance(record, OffsetRecord):
        return (
            offset_key(record.group_id, record.topic, record.partition),
            None if record.value is None else _offset_value(record.value),
        )
    if not isinstance(record, GroupRecord):
        return encode_consumer(record)
    key = write_key(GroupMetadataKey(group=record.group_id))
    return key, None if record.value is None else _group_value(record.value)


def decode(key: bytes, value: bytes | None) -> StoredRecord:
    """The record of a key and value. Raises ``UnknownKind``, or ``UnknownRecord`` if malformed."""
    kind = read_int16(key)
    try:
        if kind in (OFFSET_KEY, LEGACY_OFFSET_KEY):
            group_id, at = _text(key, 2)
            topic, at = _text(key, at)
            partition: int = _INT.unpack_from(key, at)[0]
            committed = None if value is None else _read_offset_value(value)
            return OffsetRecord(group_id, topic, partition, committed)
        if kind == GROUP_KEY:
            group = read_key(GroupMetadataKey, key).group
            return GroupRecord(group, None if value is None else _read_group_value(value))
        if kind in CONSUMER_KEYS:
            if value is not None and read_int16(value) != CONSUMER_VERSION:
                raise UnknownKind(f"version {read_int16(value)} of key type {kind}")
            return decode_consumer(kind, key, value)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise UnknownRecord(f"unreadable record with key {key!r}: {error}") from error
    raise UnknownKind(f"key type {kind}")


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group = group_id.encode()
    name = topic.encode()
    return b"".join(
        (
            _OFFSET_KEY_HEAD.pack(OFFSET_KEY, len(group)),
            group,
            _SHORT.pack(len(name)),
            name,
            _INT.pack(partition),
        )
    )


def _offset_value(value: CommittedOffset) -> bytes:
    text = value.metadata.encode()
    if value.expire_timestamp_ms is not None:
        head = _V1_HEAD.pack(1, value.offset, len(text))
        return head + text + _V1_TAIL.pack(value.commit_timestamp_ms, value.expire_timestamp_ms)
    head = _V4_HEAD.pack(4, value.offset, value.leader_epoch)
    tags = _NO_TAGS if value.topic_id is None else _TOPIC_ID_TAG + value.topic_id.bytes
    size = _unsigned_varint(len(text) + 1)
    return b"".join((head, size, text, _LONG.pack(value.commit_timestamp_ms), tags))


def _read_offset_value(value: bytes) -> CommittedOffset:
    version = read_int16(value)
    offset: int = _LONG.unpack_from(value, 2)[0]
    at = 10
    leader_epoch = -1
    expires: int | None = None
    topic_id: UUID | None = None
    if version in (3, 4):
        leader_epoch = _INT.unpack_from(value, at)[0]
        at += 4
    if version == 4:
        size, at = _read_unsigned_varint(value, at)
        text = value[at : at + size - 1].decode()
        at += size - 1
    elif version in (0, 1, 2, 3):
        text, at = _text(value, at)
    else:
        raise UnknownKind(f"version {version} of an offset")
    committed: int = _LONG.unpack_from(value, at)[0]
    at += 8
    if version == 1:
        given: int = _LONG.unpack_from(value, at)[0]
        expires = None if given == -1 else given
    elif version == 4:
        topic_id = _read_topic_id(value, at)
    return CommittedOffset(offset, leader_epoch, text, committed, expires, topic_id)


def _read_topic_id(value: bytes, at: int) -> UUID | None:
    """The topic id among the tagged fields; unknown tags are skipped."""
    found: UUID | None = None
    count, at = _read_unsigned_varint(value, at)
    for _ in range(count):
        tag, at = _read_unsigned_varint(value, at)
        size, at = _read_unsigned_varint(value, at)
        if at + size > len(value):
            raise UnknownRecord(f"a tagged field of {size} bytes ends beyond its record")
        if tag == 0 and size == 16:
            found = UUID(bytes=bytes(value[at : at + size]))
        at += size
    return found if found is None or found.int else None


def _text(buffer: bytes, at: int) -> tuple[str, int]:
    size: int = _SHORT.unpack_from(buffer, at)[0]
    end = at + 2 + size
    if size < 0 or end > len(buffer):
        raise UnknownRecord(f"a text of {size} bytes ends beyond its record")
    return buffer[at + 2 : end].decode(), end


def _unsigned_varint(number: int) -> bytes:
    if number <= 0x7F:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_unsigned_varint(buffer: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 28:
            raise UnknownRecord("a length of more than five bytes")


def _group_value(value: StoredGroup) -> bytes:
    stamp = value.state_timestamp_ms
    members = tuple(
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    )
    return write_value(
        GroupMetadataValue(
            protocol_type=value.protocol_type or "",
            generation=value.generation,
            protocol=value.protocol_name,
            leader=value.leader_id,
            current_state_timestamp=-1 if stamp is None else stamp,
            members=members,
        ),
        version=GROUP_VERSION,
    )


def _read_group_value(value: bytes) -> StoredGroup:
    if read_int16(value) not in versions(GroupMetadataValue):
        raise UnknownKind(f"version {read_int16(value)} of a group")
    stored = read_value(GroupMetadataValue, value)
    stamp = stored.current_state_timestamp
    return StoredGroup(
        protocol_type=stored.protocol_type or None,
        generation=stored.generation,
        protocol_name=stored.protocol,
        leader_id=stored.leader,
        state_timestamp_ms=None if stamp == -1 else stamp,
        members=tuple(_stored_member(member) for member in stored.members),
    )


def _stored_member(member: MemberMetadata) -> StoredMember:
    # Version 0 has no rebalance timeout; the session timeout applied.
    rebalance = member.rebalance_timeout
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.session_timeout if rebalance == -1 else rebalance,
        session_timeout_ms=member.session_timeout,
        subscription=bytes(member.subscription),
        assignment=bytes(member.assignment),
    )
