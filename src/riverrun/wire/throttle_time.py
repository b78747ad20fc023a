"""The field ``throttle_time_ms`` of encoded responses.

It is the first field of most responses. Some have it elsewhere, and old versions do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import decode_response, encode_response, response_fields
from riverrun.wire.layout import Field
from riverrun.wire.primitives import INT32, Buffer

NAME = "throttle_time_ms"


@cache
def _position(key: ApiKey, version: int) -> int | None:
    """The position of the field among the fields of a version; None if it is absent."""
    names = [field.name for field in response_fields(key) if _is_in(field, version)]
    return names.index(NAME) if NAME in names else None


def _is_in(field: Field, version: int) -> bool:
    return field.first <= version <= field.last


def throttle_time_of(key: ApiKey, version: int, body: Any) -> int:
    """The time in a response that is a message, bytes or buffers; 0 if it is not its first field
    and the body is encoded."""
    if not isinstance(body, bytes | list):
        found: int = getattr(body, NAME, 0)
        return found
    if _position(key, version) != 0:
        return 0
    first: int = INT32.unpack_from(body if isinstance(body, bytes) else body[0])[0]
    return first


def with_throttle_time(key: ApiKey, version: int, body: Any, time_ms: int) -> Any:
    """The same response with another time."""
    position = _position(key, version)
    if position is None:
        return body
    if not isinstance(body, bytes | list):
        return replace(body, throttle_time_ms=time_ms)
    if position > 0:
        message = decode_response(key, version, body if isinstance(body, bytes) else _joined(body))
        return encode_response(key, version, replace(message, throttle_time_ms=time_ms))
    start = INT32.pack(time_ms)
    if isinstance(body, bytes):
        return start + body[INT32.size :]
    return [start, memoryview(body[0])[INT32.size :], *body[1:]]


def _joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(buffers)
