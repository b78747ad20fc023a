"""Encodes and decodes messages of every API and version.

Decoding raises only ``MalformedRequest``, whatever the input. A message that cannot be encoded is
our bug and fails an assertion. ``wire/headers.py`` has the headers, ``wire/produce.py`` and
``wire/fetch.py`` have the two hot messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

from riverrun.wire.apis import KNOWN_APIS, PRIVATE_APIS, ApiKey
from riverrun.wire.compiler import (
    Joiner,
    Reader,
    Writer,
    compile_joiner,
    compile_reader,
    compile_writer,
)
from riverrun.wire.layout import Field, MessageModule
from riverrun.wire.primitives import ITEMS_MAX, Buffer, MalformedRequest

__all__ = [
    "MalformedRequest",
    "decode_request",
    "decode_response",
    "encode_element",
    "encode_request",
    "encode_response",
    "join_response",
]

REQUEST: Final = "request"
RESPONSE: Final = "response"


def decode_request(key: ApiKey, version: int, buffer: Buffer, at: int = 0) -> Any:
    """Decode the request that starts at ``at``.

    Like Kafka, ignores bytes after it: librdkafka 2.16 sends three extra bytes when it requests
    the metadata of all topics.
    """
    return _decode(key, version, REQUEST, buffer, at)


def decode_response(key: ApiKey, version: int, buffer: Buffer, at: int = 0) -> Any:
    return _decode(key, version, RESPONSE, buffer, at)


def encode_request(key: ApiKey, version: int, message: Any) -> bytes:
    return _encode(key, version, REQUEST, message)


def encode_response(key: ApiKey, version: int, message: Any) -> bytes:
    return _encode(key, version, RESPONSE, message)


def encode_element(key: ApiKey, version: int, element: Any) -> bytes:
    """One element of an array of a response, for ``join_response``."""
    out = bytearray()
    try:
        _element_writer(key, version, type(element).__name__)(out, element)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise AssertionError(f"cannot write {element!r} as version {version}: {error}") from error
    return bytes(out)


def join_response(
    key: ApiKey, version: int, message: Any, array: str, elements: Sequence[bytes]
) -> bytes:
    """A response whose array field ``array`` holds encoded elements."""
    out = bytearray()
    _joiner(key, version, array)(out, message, elements)
    return bytes(out)


def message_class(key: ApiKey, side: str) -> type[Any]:
    """The class of an API's request or response."""
    return _module(key, side).MESSAGE


def response_fields(key: ApiKey) -> tuple[Field, ...]:
    """The fields of an API's response, in the order of the wire, over all versions."""
    module = _module(key, RESPONSE)
    return module.LAYOUTS[module.MESSAGE.__name__]


def _decode(key: ApiKey, version: int, side: str, buffer: Buffer, at: int) -> Any:
    end = len(buffer)
    try:
        message, stop = _reader(key, version, side)(buffer, at, end)
        if stop != end and side == RESPONSE:
            raise MalformedRequest(f"{end - stop} bytes too many")
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{KNOWN_APIS[key].name} v{version} {side}: {error}") from error
    return message


def _encode(key: ApiKey, version: int, side: str, message: Any) -> bytes:
    out = bytearray()
    try:
        _writer(key, version, side)(out, message)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise AssertionError(f"cannot write {message!r} as version {version}: {error}") from error
    return bytes(out)


@cache
def _module(key: ApiKey, side: str) -> MessageModule:
    package = "private" if key in PRIVATE_APIS else "messages"
    found = import_module(f"riverrun.wire.{package}.{KNOWN_APIS[key].name}_{side}")
    return cast(MessageModule, found)


@cache
def _reader(key: ApiKey, version: int, side: str) -> Reader:
    items_max = ITEMS_MAX if side == REQUEST else None
    return compile_reader(_module(key, side), version, items_max=items_max)


@cache
def _writer(key: ApiKey, version: int, side: str) -> Writer:
    return compile_writer(_module(key, side), version)


@cache
def _element_writer(key: ApiKey, version: int, name: str) -> Writer:
    return compile_writer(_module(key, RESPONSE), version, name=name)


@cache
def _joiner(key: ApiKey, version: int, array: str) -> Joiner:
    return compile_joiner(_module(key, RESPONSE), version, array)
