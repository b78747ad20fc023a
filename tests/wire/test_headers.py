"""Request and response headers match kio, including Kafka's exceptions."""

from __future__ import annotations

import io
import struct

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.serial import entity_writer

from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import MalformedRequest
from riverrun.wire.headers import (
    has_flexible_response_header,
    read_response_header,
    request_frame,
    response_start,
)
from riverrun.wire.primitives import read_varint, write_varint
from tests.wire.request_headers import body_position, read_request_header


@pytest.mark.parametrize("client_id", [None, "", "me", "ü" * 200])
@pytest.mark.parametrize("version", [1, 12])
def test_request_headers_match_kio(version: int, client_id: str | None) -> None:
    api = ALL_APIS[ApiKey.METADATA]
    made = (KioHeader2 if version >= 9 else KioHeader1)(
        request_api_key=3,  # type: ignore[arg-type]
        request_api_version=version,  # type: ignore[arg-type]
        correlation_id=-7,  # type: ignore[arg-type]
        client_id=client_id,
    )
    with io.BytesIO() as out:
        entity_writer(type(made))(out, made)
        expected = out.getvalue() + b"body"
    frame = request_frame(api, version, -7, client_id, b"body")
    assert frame == struct.pack(">i", len(expected)) + expected
    header = read_request_header(expected)
    assert header[:4] == (3, version, -7, client_id)
    assert body_position(api, version, expected, header.at) == len(expected) - 4
    for cut in range(len(expected) - 4):
        with pytest.raises(MalformedRequest):
            body_position(api, version, expected[:cut], read_request_header(expected[:cut]).at)


def test_tagged_fields_of_a_header_are_skipped() -> None:
    data = struct.pack(">hhih", 3, 12, 1, -1) + b"\x01\x00\x02ab" + b"body"
    at = read_request_header(data).at
    assert data[body_position(ALL_APIS[ApiKey.METADATA], 12, data, at) :] == b"body"


def test_api_versions_response_always_has_header_0() -> None:
    flexible = [has_flexible_response_header(ALL_APIS[ApiKey.API_VERSIONS], v) for v in range(5)]
    assert flexible == [False] * 5
    assert has_flexible_response_header(ALL_APIS[ApiKey.METADATA], 9)
    assert not has_flexible_response_header(ALL_APIS[ApiKey.METADATA], 8)


@pytest.mark.parametrize("is_flexible", [False, True])
def test_response_headers_round_trip(is_flexible: bool) -> None:
    start = response_start(99, 4, is_flexible=is_flexible)
    frame = start[4:] + b"body"
    assert int.from_bytes(start[:4], "big") == len(frame)
    assert read_response_header(frame, is_flexible=is_flexible) == (99, len(frame) - 4)
    with pytest.raises(MalformedRequest):
        read_response_header(b"\0\0", is_flexible=is_flexible)


def test_varints_have_at_most_31_bits() -> None:
    for value in (0, 1, 127, 128, 300, 2**14, 2**21 - 1, 2**28, 2**31 - 1):
        out = bytearray()
        write_varint(out, value)
        assert read_varint(out, 0) == (value, len(out))
    for bad in (b"\xff\xff\xff\xff\x08", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 9):
        with pytest.raises(MalformedRequest):
            read_varint(bad, 0)
