"""Encodes and decodes the records that Kafka stores by schema (see tools/generate_records.py).

A class covers all versions of its record. Readers accept any version; fields that it lacks have
their defaults. Writers take the version as an argument. In ``__consumer_offsets`` and
``__transaction_state`` a key begins with an int16 for the type of record, a value with an int16 for
its version. Metadata records have their own frame (``metadata/records.py``).
"""

from __future__ import annotations

import struct
import sys
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, cast

from riverrun.wire.compiler import Reader, Writer, compile_reader, compile_writer
from riverrun.wire.layout import MessageModule
from riverrun.wire.primitives import MalformedRequest

T = TypeVar("T")

_INT16 = struct.Struct(">h")


class UnknownRecord(ValueError):
    """An unknown record or version, or invalid bytes."""


class Key(Protocol):
    """A key of a coordinator record."""

    API_KEY: ClassVar[int]


K = TypeVar("K", bound=Key)


def read_body(cls: type[T], version: int, buffer: bytes | memoryview, at: int = 0) -> tuple[T, int]:
    """The record at a position, and the position after it."""
    try:
        found: tuple[T, int] = _reader(cast(Any, cls), version)(buffer, at, len(buffer))
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise UnknownRecord(f"not version {version} of {cls.__name__}: {error}") from error
    return found


def write_body(record: object, version: int) -> bytes:
    out = bytearray()
    try:
        _writer(cast(Any, type(record)), version)(out, record)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise AssertionError(f"cannot write {record!r} as version {version}: {error}") from error
    return bytes(out)


def read_int16(buffer: bytes | memoryview) -> int:
    """The number at the start of a key (record type) or value (version)."""
    if len(buffer) < 2:
        raise UnknownRecord(f"{len(buffer)} bytes are not a coordinator record")
    number: int = _INT16.unpack_from(buffer)[0]
    return number


def read_key(cls: type[K], buffer: bytes | memoryview) -> K:
    """A coordinator key, of the class that ``read_int16`` identified."""
    assert read_int16(buffer) == cls.API_KEY, f"{read_int16(buffer)} is not {cls.__name__}"
    return read_body(cls, 0, buffer, 2)[0]


def write_key(record: Key) -> bytes:
    return _INT16.pack(record.API_KEY) + write_body(record, 0)


def read_value(cls: type[T], buffer: bytes | memoryview) -> T:
    """A coordinator value of any version."""
    return read_body(cls, read_int16(buffer), buffer, 2)[0]


def write_value(record: object, version: int) -> bytes:
    return _INT16.pack(version) + write_body(record, version)


def versions(cls: type[object]) -> range:
    """The known versions of a record."""
    first, last = _module(cls).VERSIONS
    return range(first, last + 1)


@cache
def _reader(cls: Any, version: int) -> Reader:
    if version not in versions(cls):
        raise UnknownRecord(f"version {version} of {cls.__name__} is not known")
    return compile_reader(_module(cls), version)


@cache
def _writer(cls: Any, version: int) -> Writer:
    return compile_writer(_module(cls), version)


def _module(cls: type[object]) -> MessageModule:
    return cast(MessageModule, sys.modules[cls.__module__])
