"""Every generated class round-trips at every version, and junk is refused."""

import dataclasses
import importlib
import pkgutil
import types
import typing
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riverrun.coordinator.schema
import riverrun.metadata.schema
import riverrun.storage.schema
from riverrun.coordinator.schema import group_metadata_value, offset_commit_key, offset_commit_value
from riverrun.records.entity import (
    UnknownRecord,
    convert,
    read_entity,
    read_int16,
    read_key,
    read_value,
    write_entity,
    write_key,
    write_value,
)

NUMBERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
PLAIN = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "uuid": st.none() | st.uuids().filter(lambda drawn: drawn != UUID(int=0)),
}


def all_modules() -> list[types.ModuleType]:
    packages = (riverrun.metadata.schema, riverrun.coordinator.schema, riverrun.storage.schema)
    return [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg
    ]


def newest_of_all() -> dict[type, type]:
    """Each class with the one that it is read as."""
    modules = {module.__name__: module for module in all_modules()}
    newest = {}
    for name, module in modules.items():
        versions = modules[name.removesuffix("_older")].VERSIONS
        newest |= {cls: versions[max(versions)] for cls in module.VERSIONS.values()}
    return newest


NEWEST = newest_of_all()


def values(hint: object, kafka_type: str | None) -> st.SearchStrategy[object]:
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0], kafka_type), max_size=2).map(tuple)
    if isinstance(hint, types.UnionType) and kafka_type != "uuid":
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return st.none() | values(inner, kafka_type)
    if isinstance(hint, types.UnionType) and typing.get_origin(typing.get_args(hint)[0]) is tuple:
        return st.none() | values(typing.get_args(hint)[0], kafka_type)
    if kafka_type in NUMBERS:
        return st.integers(*NUMBERS[kafka_type])
    if kafka_type is not None:
        return PLAIN[kafka_type]
    assert isinstance(hint, type)
    return entities(hint)


def entities(cls: type) -> st.SearchStrategy[typing.Any]:
    drawn = {}
    for field in dataclasses.fields(cls):
        if field.name == "classic_member_metadata":
            continue  # see the docstring of records/entity.py
        drawn[field.name] = values(field.type, field.metadata.get("kafka_type"))
    return st.builds(cls, **drawn)


@pytest.mark.parametrize("cls", NEWEST, ids=lambda cls: cls.__name__)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_every_version_round_trips_and_can_become_the_newest(
    cls: type, data: st.DataObject
) -> None:
    entity = data.draw(entities(cls))
    written = write_entity(entity)
    assert read_entity(cls, b"xx" + written + b"tail", 2) == (entity, 2 + len(written))
    newest = NEWEST[cls]
    assert type(convert(entity, newest)) is newest


def test_an_old_value_is_read_as_the_newest_with_defaults() -> None:
    old = offset_commit_value.OffsetCommitValueV1(
        offset=7, metadata="m", commit_timestamp=1, expire_timestamp=2
    )
    newest = offset_commit_value.OffsetCommitValue
    read = read_value(offset_commit_value.VERSIONS, newest, write_value(old))
    assert read == newest(offset=7, metadata="m", commit_timestamp=1)
    assert (read.leader_epoch, read.topic_id) == (-1, None)


def test_nested_entities_are_converted_too() -> None:
    old = group_metadata_value.GroupMetadataValueV0(
        protocol_type="consumer",
        generation=1,
        protocol=None,
        leader=None,
        members=(
            group_metadata_value.MemberMetadataV0(
                member_id="m",
                client_id="c",
                client_host="h",
                session_timeout=10,
                subscription=b"",
                assignment=b"",
            ),
        ),
    )
    newest = group_metadata_value.GroupMetadataValue
    read = read_value(group_metadata_value.VERSIONS, newest, write_value(old))
    assert isinstance(read.members[0], group_metadata_value.MemberMetadataV4)
    assert read.members[0].rebalance_timeout == -1
    assert convert(read, group_metadata_value.GroupMetadataValueV0) == old


def test_keys_begin_with_the_number_of_their_record() -> None:
    key = offset_commit_key.OffsetCommitKey(group="g", topic="t", partition=3)
    written = write_key(key)
    assert written == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    assert read_int16(written) == 1
    assert read_key(offset_commit_key.OffsetCommitKey, written) == key


@pytest.mark.parametrize("junk", [b"", b"\x00", b"\x00\x09rest", b"\x00\x04\x00", b"\x00\x03\xff"])
def test_what_cannot_be_read_is_refused(junk: bytes) -> None:
    with pytest.raises(UnknownRecord):
        read_value(offset_commit_value.VERSIONS, offset_commit_value.OffsetCommitValue, junk)
