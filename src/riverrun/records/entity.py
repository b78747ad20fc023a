"""Read and write the classes that tools/generate_records.py makes, at any of their versions.

Three framings exist. Keys of ``__consumer_offsets`` and ``__transaction_state`` begin with the
int16 that tells which record they belong to, their values with the int16 of their version;
metadata records begin with three unsigned varints (see ``metadata/records.py``). The rest of each
is the plain entity.

Reading gives the newest class whatever version was stored: what older versions lack takes its
default. kio writes a tagged struct that may be null without the byte that says it is not; the only
one is ``ConsumerGroupMemberMetadataValue.classic_member_metadata``, which nobody writes yet.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError, OutOfBoundValue
from kio.static.protocol import Entity

E = TypeVar("E", bound=Entity)

_INT16 = struct.Struct(">h")


class UnknownRecord(ValueError):
    """A record or version that this program does not know, or one that cannot be read."""


def read_entity(cls: type[E], buffer: bytes | memoryview, at: int = 0) -> tuple[E, int]:
    """The entity at a position and the position behind it."""
    try:
        entity, size = entity_reader(cls)(buffer, at)
    except (DecodeError, OutOfBoundValue, ValueError) as error:
        raise UnknownRecord(f"not a {cls.__name__}: {error}") from error
    return entity, at + size


def write_entity(entity: Entity) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


def read_int16(buffer: bytes | memoryview) -> int:
    """The number in front of a key (which record) or of a value (which version)."""
    if len(buffer) < 2:
        raise UnknownRecord(f"{len(buffer)} bytes are no coordinator record")
    number: int = _INT16.unpack_from(buffer)[0]
    return number


def read_key(cls: type[E], buffer: bytes | memoryview) -> E:
    """A coordinator's key of a known class."""
    assert read_int16(buffer) == api_key(cls), f"{read_int16(buffer)} is not {cls.__name__}"
    return read_entity(cls, buffer, 2)[0]


def write_key(entity: Entity) -> bytes:
    return _INT16.pack(api_key(type(entity))) + write_entity(entity)


def read_value(versions: Mapping[int, type[Any]], newest: type[E], buffer: bytes | memoryview) -> E:
    """A coordinator's value, as the newest version; ``versions`` is its module's VERSIONS."""
    version = read_int16(buffer)
    if version not in versions:
        raise UnknownRecord(f"version {version} of {newest.__name__} is not known")
    stored, _ = read_entity(versions[version], buffer, 2)
    return convert(stored, newest)


def write_value(entity: Entity) -> bytes:
    """A coordinator's value at the version of its class."""
    return _INT16.pack(entity.__version__) + write_entity(entity)


def api_key(cls: type[Any]) -> int:
    """Kafka's number of the record that a class belongs to."""
    number: int = cls.__api_key__
    return number


def convert(entity: Entity, target: type[E]) -> E:
    """The same record at another version: dropped is what it lacks, default what it adds."""
    if type(entity) is target:
        return entity
    made: E = _converter(type(entity), target)(entity)
    return made


@cache
def _converter(source: type[Any], target: type[Any]) -> Callable[[Any], Any]:
    known = {field.name for field in dataclasses.fields(source)}
    shared = []
    for field in dataclasses.fields(target):
        if field.name in known:
            shared.append((field.name, _nested(field.type)))
        else:
            assert field.default is not dataclasses.MISSING, f"{target.__name__}.{field.name}"

    def convert_one(entity: Any) -> Any:
        values = {}
        for name, nested in shared:
            value = getattr(entity, name)
            if nested is not None and value is not None:
                if isinstance(value, tuple):
                    value = tuple(convert(item, nested) for item in value)
                else:
                    value = convert(value, nested)
            values[name] = value
        return target(**values)

    return convert_one


def _nested(hint: Any) -> type[Any] | None:
    """The dataclass inside ``X``, ``X | None``, ``tuple[X, ...]`` or ``tuple[X, ...] | None``."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    for argument in getattr(hint, "__args__", ()):
        found = _nested(argument)
        if found is not None:
            return found
    return None
