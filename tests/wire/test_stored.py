"""Every generated record round-trips in every version; invalid bytes are rejected."""

import importlib
import pkgutil
import typing
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import riverrun.coordinator.schema
import riverrun.metadata.schema
from riverrun.coordinator.schema.consumer_group_member_metadata_value import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from riverrun.coordinator.schema.group_metadata_value import GroupMetadataValue, MemberMetadata
from riverrun.coordinator.schema.offset_commit_key import OffsetCommitKey
from riverrun.coordinator.schema.offset_commit_value import OffsetCommitValue
from riverrun.wire.layout import MessageModule, defaults
from riverrun.wire.stored import (
    UnknownRecord,
    read_body,
    read_int16,
    read_key,
    read_value,
    write_body,
    write_key,
    write_value,
)

NUMBERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
PLAIN = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "uuid": st.none() | st.uuids().filter(lambda drawn: drawn != UUID(int=0)),
}


def all_modules() -> list[MessageModule]:
    packages = (riverrun.metadata.schema, riverrun.coordinator.schema)
    return [
        typing.cast(MessageModule, importlib.import_module(f"{package.__name__}.{module.name}"))
        for package in packages
        for module in pkgutil.iter_modules(package.__path__)
    ]


CASES = [
    pytest.param(module, version, id=f"{module.MESSAGE.__name__}-v{version}")
    for module in all_modules()
    for version in range(module.VERSIONS[0], module.VERSIONS[1] + 1)
]


def values(module: MessageModule, kind: str, version: int) -> st.SearchStrategy[typing.Any]:
    if kind.startswith("[]"):
        return st.lists(values(module, kind[2:], version), max_size=2).map(tuple)
    if kind in NUMBERS:
        return st.integers(*NUMBERS[kind])
    if kind in PLAIN:
        return PLAIN[kind]
    return records(module, kind, version)


def records(module: MessageModule, name: str, version: int) -> st.SearchStrategy[typing.Any]:
    drawn = {}
    for field, kind, first, last, is_nullable, _ in module.LAYOUTS[name]:
        if first <= version <= last:
            strategy = values(module, kind, version)
            drawn[field] = st.none() | strategy if is_nullable else strategy
    cls = getattr(module, name)
    for field, default in defaults(cls).items():
        if field not in drawn:
            drawn[field] = st.just(default)
    return st.builds(cls, **drawn)


@pytest.mark.parametrize(("module", "version"), CASES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_every_version_round_trips(
    module: MessageModule, version: int, data: st.DataObject
) -> None:
    record = data.draw(records(module, module.MESSAGE.__name__, version))
    written = write_body(record, version)
    read = read_body(module.MESSAGE, version, b"xx" + written + b"tail", 2)
    assert read == (record, 2 + len(written))


def test_old_value_is_read_with_defaults_for_new_fields() -> None:
    old = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1, expire_timestamp=2)
    assert read_value(OffsetCommitValue, write_value(old, 1)) == old
    assert read_value(OffsetCommitValue, write_value(old, 3)).expire_timestamp == -1
    assert (old.leader_epoch, old.topic_id) == (-1, None)


def test_value_can_be_written_in_any_version() -> None:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="h",
        session_timeout=10,
        rebalance_timeout=20,
        subscription=b"",
        assignment=b"",
    )
    group = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol=None, leader=None, members=(member,)
    )
    read = read_value(GroupMetadataValue, write_value(group, 0))
    assert read.members == (replace(member, rebalance_timeout=-1),)


def test_keys_begin_with_their_record_type() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    written = write_key(key)
    assert written == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    assert read_int16(written) == 1
    assert read_key(OffsetCommitKey, written) == key


def test_nullable_tagged_struct_is_encoded_like_kafka() -> None:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="h",
        subscribed_topic_names=(),
        subscribed_topic_regex=None,
        server_assignor=None,
        classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=5, supported_protocols=()),
    )
    # The bytes that Kafka 4.3.1 writes for this value (MessageUtil.toVersionPrefixedBytes).
    written = bytes.fromhex("00000000026302680100ffffffff0001000701000000050100")
    assert write_value(value, 0) == written
    assert read_value(ConsumerGroupMemberMetadataValue, written) == value


def test_control_records_match_kio() -> None:
    from io import BytesIO

    from kio.schema.leader_change_message.v0.data import LeaderChangeMessage as KioMessage
    from kio.schema.leader_change_message.v0.data import Voter as KioVoter
    from kio.serial import entity_writer

    from riverrun.metadata.schema.leader_change_message import LeaderChangeMessage, Voter

    out = BytesIO()
    voter = KioVoter(voter_id=3)  # type: ignore[arg-type]
    message = KioMessage(version=0, leader_id=3, voters=(voter,), granting_voters=(voter,))  # type: ignore[arg-type]
    entity_writer(KioMessage)(out, message)
    ours = (Voter(voter_id=3),)
    written = write_body(
        LeaderChangeMessage(version=0, leader_id=3, voters=ours, granting_voters=ours), 0
    )
    assert written == out.getvalue()


@pytest.mark.parametrize(
    "garbage", [b"", b"\x00", b"\x00\x09rest", b"\x00\x04\x00", b"\x00\x03\xff"]
)
def test_invalid_bytes_are_rejected(garbage: bytes) -> None:
    with pytest.raises(UnknownRecord):
        read_value(OffsetCommitValue, garbage)
