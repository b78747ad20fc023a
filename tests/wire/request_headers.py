"""Reads request headers, for fake servers. The product's router reads them in place."""

from __future__ import annotations

import struct
from typing import NamedTuple

from riverrun.wire.apis import Api
from riverrun.wire.primitives import (
    Buffer,
    MalformedRequest,
    read_text_or_null,
    skip_tagged_fields,
)

_START = struct.Struct(">hhi")


class RequestHeader(NamedTuple):
    """The fields common to all APIs. ``at`` is the position after the client id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    at: int


def read_request_header(buffer: Buffer, at: int = 0) -> RequestHeader:
    """Read the fields that all versions share; ``body_position`` skips the rest."""
    try:
        api_key, api_version, correlation_id = _START.unpack_from(buffer, at)
        client_id, at = read_text_or_null(buffer, at + 8, len(buffer))
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedRequest(f"request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, at)


def body_position(api: Api, version: int, buffer: Buffer, at: int) -> int:
    """The position of the body, given the position after the client id."""
    if version < api.flexible_from:
        return at
    try:
        return skip_tagged_fields(buffer, at, len(buffer)) if buffer[at] else at + 1
    except IndexError as error:
        raise MalformedRequest(f"request header: {error}") from error
