"""Headers of requests and responses, and the length field of a frame.

Requests have headers 1 and 2 (flexible, with tagged fields), responses 0 and 1. Kafka makes two
exceptions: the client id has a two-byte length in both request headers, and an ApiVersions response
always has header 0, because the client does not know the broker's versions yet (KIP-511).
"""

from __future__ import annotations

import struct

from riverrun.wire.apis import Api, ApiKey
from riverrun.wire.primitives import (
    Buffer,
    MalformedRequest,
    skip_tagged_fields,
    write_text_or_null,
)

LENGTH = struct.Struct(">i")
_START = struct.Struct(">hhi")
_RESPONSE = struct.Struct(">ii")
_FLEXIBLE_RESPONSE = struct.Struct(">iib")


def request_frame(
    api: Api, version: int, correlation_id: int, client_id: str | None, body: bytes
) -> bytes:
    """A request frame, including its length field."""
    return request_start(api, version, correlation_id, client_id, len(body)) + body


def request_start(
    api: Api, version: int, correlation_id: int, client_id: str | None, body_bytes: int
) -> bytes:
    """Length field and header of a request with a body of this size."""
    header = bytearray(_START.pack(api.key, version, correlation_id))
    write_text_or_null(header, client_id)
    if version >= api.flexible_from:
        header.append(0)
    return LENGTH.pack(len(header) + body_bytes) + header


def flexible_header_from(api: Api) -> int:
    """The first version with response header 1."""
    return 2**15 if api.key is ApiKey.API_VERSIONS else api.flexible_from


def has_flexible_response_header(api: Api, version: int) -> bool:
    return version >= flexible_header_from(api)


def response_start(correlation_id: int, body_bytes: int, *, is_flexible: bool) -> bytes:
    """Length field and header of a response with a body of this size."""
    if is_flexible:
        return _FLEXIBLE_RESPONSE.pack(body_bytes + 5, correlation_id, 0)
    return _RESPONSE.pack(body_bytes + 4, correlation_id)


def read_response_header(buffer: Buffer, *, is_flexible: bool) -> tuple[int, int]:
    """Correlation id and body position of a response frame without its length field."""
    try:
        correlation_id: int = LENGTH.unpack_from(buffer, 0)[0]
        at = 4
        if is_flexible:
            at = skip_tagged_fields(buffer, at, len(buffer))
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"response header: {error}") from error
    return correlation_id, at
