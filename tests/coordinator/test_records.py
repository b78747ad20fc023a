"""Records of ``__consumer_offsets``: our encoding compared with bytes of Kafka."""

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.coordinator.records import (
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
    UnknownKind,
    decode,
    encode,
)
from riverrun.coordinator.schema.offset_commit_key import OffsetCommitKey
from riverrun.coordinator.schema.offset_commit_value import OffsetCommitValue
from riverrun.wire.stored import UnknownRecord, write_key, write_value

# Written by Apache Kafka 4.3.1 (metadata.version 4.3-IV0) and read out of its log.
MEMBER = StoredMember(
    member_id="i1-01ca9d87-b327-4d7f-a419-cb781e4c60c8",
    instance_id="i1",
    client_id="plain-client",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=10_000,
    session_timeout_ms=10_000,
    subscription=b"\x00\x00\x00\x00\x00\x01\x00\x02t1\xff\xff\xff\xff",
    assignment=b"A",
)
BY_KAFKA = [
    (
        "000200027374",
        "0003000000000000ffffffff000001a1e14a947300000000",
        GroupRecord(
            "st",
            StoredGroup(
                protocol_type=None,
                generation=0,
                protocol_name=None,
                leader_id=None,
                state_timestamp_ms=0x01A1E14A9473,
                members=(),
            ),
        ),
    ),
    (
        "000200027374",
        "00030008636f6e73756d657200000001000572616e6765002769312d30316361396438372d623332372d3464"
        "37662d613431392d636237383165346336306338000001a1e14a947400000001002769312d30316361396438"
        "372d623332372d346437662d613431392d63623738316534633630633800026931000c706c61696e2d636c69"
        "656e74000a2f3132372e302e302e3100002710000027100000000e00000000000100027431ffffffff000000"
        "0141",
        GroupRecord(
            "st",
            StoredGroup(
                protocol_type="consumer",
                generation=1,
                protocol_name="range",
                leader_id=MEMBER.member_id,
                state_timestamp_ms=0x01A1E14A9474,
                members=(MEMBER,),
            ),
        ),
    ),
    (
        "0001000273320002743100000000",
        "0001000000000000000500016d000001a1e14a90ab000001a1e14b7b0b",
        OffsetRecord(
            "s2", "t1", 0, CommittedOffset(5, -1, "m", 0x01A1E14A90AB, 0x01A1E14B7B0B, None)
        ),
    ),
    (
        "000100036d6f640002743100000000",
        "0004000000000000000500000003026d000001a1e14a925201001004108b851779471fae12de22d1a83af5",
        OffsetRecord(
            "mod",
            "t1",
            0,
            CommittedOffset(
                5,
                3,
                "m",
                0x01A1E14A9252,
                None,
                uuid.UUID("04108b85-1779-471f-ae12-de22d1a83af5"),
            ),
        ),
    ),
    ("000100036d6f640002743200000000", None, OffsetRecord("mod", "t2", 0, None)),
    ("000200036d6f64", None, GroupRecord("mod", None)),
]


@pytest.mark.parametrize(("key", "value", "record"), BY_KAFKA)
def test_encoded_records_equal_kafkas(
    key: str, value: str | None, record: GroupRecord | OffsetRecord
) -> None:
    raw = (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert decode(*raw) == record
    assert encode(record) == raw


texts = st.text(max_size=40)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
times = st.integers(0, 2**60)
topic_ids = st.none() | st.uuids().filter(lambda one: one.int != 0)
offsets = st.builds(CommittedOffset, longs, ints, texts, times, st.none(), topic_ids)
expiring = st.builds(CommittedOffset, longs, st.just(-1), texts, times, times, st.none())
members = st.builds(
    StoredMember,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=st.integers(0, 2**31 - 1),
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
groups = st.builds(
    StoredGroup,
    protocol_type=st.none() | st.text(min_size=1, max_size=10),
    generation=ints,
    protocol_name=st.none() | texts,
    leader_id=st.none() | texts,
    state_timestamp_ms=st.none() | times,
    members=st.lists(members, max_size=3).map(tuple),
)
records = st.builds(GroupRecord, texts, st.none() | groups) | st.builds(
    OffsetRecord, texts, texts, ints, st.none() | offsets | expiring
)


@given(records)
def test_records_round_trip(record: GroupRecord | OffsetRecord) -> None:
    assert decode(*encode(record)) == record


@given(texts, texts, ints, offsets | expiring)
def test_packed_offset_records_equal_the_schema(
    group: str, topic: str, partition: int, value: CommittedOffset
) -> None:
    key, body = encode(OffsetRecord(group, topic, partition, value))
    assert key == write_key(OffsetCommitKey(group=group, topic=topic, partition=partition))
    version = 4 if value.expire_timestamp_ms is None else 1
    assert body == write_value(_by_schema(value), version)


@given(offsets, st.integers(0, 4))
def test_offsets_of_every_version_are_read(value: CommittedOffset, version: int) -> None:
    key = write_key(OffsetCommitKey(group="g", topic="t", partition=1))
    found = decode(key, write_value(_by_schema(value), version))
    assert isinstance(found, OffsetRecord)
    assert found.value is not None
    assert found.value.offset == value.offset
    assert found.value.metadata == value.metadata
    assert found.value.commit_timestamp_ms == value.commit_timestamp_ms
    assert found.value.leader_epoch == (value.leader_epoch if version >= 3 else -1)
    assert found.value.topic_id == (value.topic_id if version == 4 else None)


def _by_schema(value: CommittedOffset) -> OffsetCommitValue:
    fields: dict[str, Any] = {
        "offset": value.offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "commit_timestamp": value.commit_timestamp_ms,
        "topic_id": value.topic_id,
    }
    if value.expire_timestamp_ms is not None:
        fields["expire_timestamp"] = value.expire_timestamp_ms
    return OffsetCommitValue(**fields)


def test_legacy_keys_and_tags_of_later_versions_are_read() -> None:
    legacy = struct.pack(">hh1sh1si", 0, 1, b"g", 1, b"t", 2)
    assert decode(legacy, None) == OffsetRecord("g", "t", 2, None)
    key, value = encode(OffsetRecord("g", "t", 2, CommittedOffset(5, -1, "", 6, None, None)))
    assert value is not None
    tagged = value[:-1] + b"\x02\x05\x01x\x07\x02yz"
    assert decode(key, tagged) == decode(key, value)


def test_unknown_types_and_versions_differ_from_malformed_records() -> None:
    with pytest.raises(UnknownKind):
        decode(struct.pack(">hh1s", 9, 1, b"g"), b"\x00\x00")
    with pytest.raises(UnknownKind):
        decode(bytes.fromhex("000200027374"), b"\x00\x63")
    with pytest.raises(UnknownKind):
        decode(bytes.fromhex("0001000273320002743100000000"), struct.pack(">hq", 9, 1))
    for damaged in (b"", b"\x00", bytes.fromhex("00010002"), bytes.fromhex("0001fffe")):
        with pytest.raises(UnknownRecord):
            decode(damaged, None)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_malformed_records_raise_only_known_errors(key: bytes, value: bytes | None) -> None:
    kinds = (b"\x00\x03", b"\x00\x05", b"\x00\x06", b"\x00\x07", b"\x00\x08", b"\x00\x10")
    offset = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00"
    for prefix in (b"", b"\x00\x01", b"\x00\x02", offset, *kinds):
        try:
            decode(prefix + key, value)
        except (UnknownKind, UnknownRecord):
            continue
