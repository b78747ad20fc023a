"""Records that Kafka stores by schema: the classes that tools/generate_records.py makes, as bytes.

Each class stands for all versions of its record. Reading takes any version, and what an older one
lacks has its default; writing names the version. Keys of ``__consumer_offsets`` and
``__transaction_state`` begin with the int16 that tells which record they belong to, their values
with the int16 of their version. Metadata records have a frame of their own (``metadata/records``).
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
    """A record or version that this program does not know, or bytes that are none."""


class Key(Protocol):
    """What a coordinator's key has."""

    API_KEY: ClassVar[int]


K = TypeVar("K", bound=Key)


def read_body(cls: type[T], version: int, buffer: bytes | memoryview, at: int = 0) -> tuple[T, int]:
    """The record at a position and the position behind it."""
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
    """The number in front of a key (which record) or of a value (which version)."""
    if len(buffer) < 2:
        raise UnknownRecord(f"{len(buffer)} bytes are no coordinator record")
    number: int = _INT16.unpack_from(buffer)[0]
    return number


def read_key(cls: type[K], buffer: bytes | memoryview) -> K:
    """A coordinator's key of a class that ``read_int16`` has told."""
    assert read_int16(buffer) == cls.API_KEY, f"{read_int16(buffer)} is not {cls.__name__}"
    return read_body(cls, 0, buffer, 2)[0]


def write_key(record: Key) -> bytes:
    return _INT16.pack(record.API_KEY) + write_body(record, 0)


def read_value(cls: type[T], buffer: bytes | memoryview) -> T:
    """A coordinator's value of any version."""
    return read_body(cls, read_int16(buffer), buffer, 2)[0]


def write_value(record: object, version: int) -> bytes:
    return _INT16.pack(version) + write_body(record, version)


def versions(cls: type[object]) -> range:
    """The versions of a record that we know."""
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
