"""Random messages of any API and version, and their conversion to kio's classes."""

from __future__ import annotations

import dataclasses
import datetime
import random
import typing
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.layout import OWN_TAGS_FROM, MessageModule

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "topic-1", "größer", "x" * 126, "y" * 127, "z" * 300)
YEAR_9000_S = 221_845_392_000


def message(rnd: random.Random, module: MessageModule, version: int) -> Any:
    """A message with every field that Kafka's version has, and no other field."""
    return _struct(rnd, module, module.MESSAGE.__name__, version)


def _struct(rnd: random.Random, module: MessageModule, name: str, version: int) -> Any:
    values: dict[str, Any] = {}
    for field, kind, first, last, is_nullable, tag in module.LAYOUTS[name]:
        if first <= version <= last:
            if tag is not None and (tag >= OWN_TAGS_FROM or rnd.random() < 0.5):
                continue
            if is_nullable and rnd.random() < 0.3:
                values[field] = None
            else:
                values[field] = _value(rnd, module, kind, version, field)
    return getattr(module, name)(**values)


def _value(rnd: random.Random, module: MessageModule, kind: str, version: int, field: str) -> Any:
    if kind.startswith("[]"):
        count = rnd.choice((0, 1, 2, 3))
        return tuple(_value(rnd, module, kind[2:], version, field) for _ in range(count))
    if kind in INTEGERS:
        if kind == "int64" and field.endswith("_ms"):
            return rnd.randrange(YEAR_9000_S) * 1000  # kio converts milliseconds to floats
        bits = INTEGERS[kind]
        return rnd.choice((0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rnd.randrange(128)))
    match kind:
        case "uint16":
            return rnd.randrange(2**16)
        case "uint32":
            return rnd.randrange(2**32)
        case "float64":
            return rnd.uniform(-1e9, 1e9)
        case "bool":
            return rnd.random() < 0.5
        case "string":
            return rnd.choice(TEXTS)
        case "bytes":
            return rnd.randbytes(rnd.choice((0, 1, 100, 127, 400)))
        case "uuid":
            return rnd.choice((None, UUID(int=rnd.getrandbits(128))))
        case "error_code":
            return rnd.choice(list(ErrorCode))
        case _:
            return _struct(rnd, module, kind, version)


def as_kio(key: ApiKey, version: int, side: str, made: Any) -> Any:
    load = load_request_schema if side == "request" else load_response_schema
    return _convert(load(key, version), made)


def _convert(cls: Any, made: Any) -> Any:
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        kafka_type = field.metadata.get("kafka_type")
        name = next(
            n for n in (field.name, field.name + "_ms", field.name + "_") if hasattr(made, n)
        )
        values[field.name] = _converted(hints[field.name], kafka_type, getattr(made, name))
    return cls(**values)


def _converted(hint: Any, kafka_type: str | None, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        inner = next(a for a in _flat(hint) if a is not type(None))
        return tuple(_converted(inner, kafka_type, item) for item in value)
    if isinstance(value, Struct):
        cls = next(a for a in _flat(hint) if dataclasses.is_dataclass(a))
        return _convert(cls, value)
    match kafka_type:
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            if value == -1:
                return None
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return epoch + datetime.timedelta(milliseconds=value)
        case "error_code":
            return KioErrorCode(int(value))
        case _:
            return value


def _flat(hint: Any) -> list[Any]:
    arguments = typing.get_args(hint)
    if not arguments:
        return [hint]
    return [inner for argument in arguments if argument is not ... for inner in _flat(argument)]
