"""Metadata records as bytes: they round-trip, and invalid bytes are rejected."""

import contextlib
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from riverrun.metadata.records import (
    CHANGE_RECORD_VERSION,
    MODULES,
    PARTITION_RECORD_VERSION,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
    UnknownRecord,
    decode,
    encode,
    record_class,
)
from riverrun.wire.stored import read_body, versions, write_body
from tests.metadata.histories import histories, partition_record


@settings(deadline=None, max_examples=40)
@given(histories())
def test_records_round_trip(history: list[list[Record]]) -> None:
    for step in history:
        for record in step:
            assert decode(encode(record)) == record


@st.composite
def partitions(draw: DrawFn) -> PartitionRecord:
    record = partition_record(draw, draw(st.uuids()), draw(st.integers(0, 2**31 - 1)))
    nodes = tuple(draw(st.lists(st.integers(0, 2**31 - 1), max_size=20)))
    return replace(record, adding_replicas=draw(st.sampled_from([(), nodes])))


@st.composite
def partition_changes(draw: DrawFn) -> PartitionChangeRecord:
    nodes = st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple)
    return PartitionChangeRecord(
        partition_id=draw(st.integers(0, 2**31 - 1)),
        topic_id=draw(st.uuids()),
        isr=draw(nodes),
        leader=draw(st.integers(-2, 2**31 - 1)),
        replicas=draw(st.none() | nodes),
        leader_recovery_state=draw(st.sampled_from([-1, -1, 0, 1])),
        eligible_leader_replicas=draw(nodes),
        last_known_elr=draw(nodes),
    )


@settings(deadline=None, max_examples=160)
@given(partitions() | partition_changes(), st.data())
def test_hand_written_and_compiled_partition_readers_agree(
    record: PartitionRecord | PartitionChangeRecord, data: st.DataObject
) -> None:
    encoded = encode(record)
    assert encoded[2] == PARTITION_RECORD_VERSION == CHANGE_RECORD_VERSION
    if data.draw(st.booleans()):
        place = data.draw(st.integers(3, len(encoded) - 1))
        encoded = encoded[:place] + bytes([data.draw(st.integers(0, 255))]) + encoded[place + 1 :]
    if data.draw(st.booleans()):
        encoded = encoded[: data.draw(st.integers(3, len(encoded)))]
    try:
        expected, end = read_body(type(record), PARTITION_RECORD_VERSION, encoded, 3)
    except UnknownRecord:
        with pytest.raises(UnknownRecord):
            decode(encoded)
        return
    if end != len(encoded):
        with pytest.raises(UnknownRecord, match="bytes follow"):
            decode(encoded)
    else:
        assert decode(encoded) == expected


def test_the_frame_is_kafkas() -> None:
    record = FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert encode(record) == b"\x01\x0c\x00\x11metadata.version\x00\x1e\x00"


def test_older_versions_are_read() -> None:
    partition = PartitionRecord(
        partition_id=1,
        topic_id=UUID(int=7),
        replicas=(1,),
        isr=(1,),
        removing_replicas=(),
        adding_replicas=(),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    for version in versions(PartitionRecord):
        assert decode(bytes((1, 3, version)) + write_body(partition, version)) == partition


def test_every_record_schema_has_its_api_key() -> None:
    assert {key: record_class(key).API_KEY for key in MODULES} == {key: key for key in MODULES}


GOOD = encode(TopicRecord(name="a", topic_id=UUID(int=1)))


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\x01\x02",
        b"\x02" + GOOD[1:],
        b"\x01\x7f\x00",
        b"\x01\x02\x05",
        b"\x01\xff\x01\x00",
        GOOD[:-1],
        GOOD + b"\x00",
    ],
)
def test_invalid_bytes_are_rejected(junk: bytes) -> None:
    with pytest.raises(UnknownRecord):
        decode(junk)


@given(st.binary(max_size=60))
def test_only_unknown_record_is_raised(junk: bytes) -> None:
    with contextlib.suppress(UnknownRecord):
        decode(junk)
