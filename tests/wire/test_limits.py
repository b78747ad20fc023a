"""The number of items in a request is limited, whatever its size."""

import struct

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import MalformedRequest, decode_request, decode_response, encode_response
from riverrun.wire.fetch import parse_fetch
from riverrun.wire.messages.metadata_response import MetadataResponse, MetadataResponseTopic
from riverrun.wire.primitives import ITEMS_MAX, TAGS_MAX, skip_tagged_fields, write_varint
from riverrun.wire.produce import parse_produce

ONE_NAME = b"\0\1a"
TOO_MANY = ITEMS_MAX + 1


def test_request_with_too_many_items_is_rejected() -> None:
    fine = struct.pack(">i", ITEMS_MAX) + ONE_NAME * ITEMS_MAX
    assert len(decode_request(ApiKey.METADATA, 1, fine).topics) == ITEMS_MAX
    with pytest.raises(MalformedRequest, match="too many items"):
        decode_request(ApiKey.METADATA, 1, struct.pack(">i", TOO_MANY) + ONE_NAME * TOO_MANY)
    assert len(decode_request(ApiKey.METADATA, 1, fine).topics) == ITEMS_MAX, (
        "each request has its own count"
    )


def test_items_of_all_arrays_count_together() -> None:
    """DeleteRecords version 0 has topics with partitions."""
    partitions = struct.pack(">i", 1000) + bytes(12 * 1000)
    topics = (ONE_NAME + partitions) * 100
    frame = struct.pack(">i", 100) + topics + bytes(4)
    with pytest.raises(MalformedRequest, match="too many items"):
        decode_request(ApiKey.DELETE_RECORDS, 0, frame)


def test_response_may_have_any_number_of_items() -> None:
    topic = MetadataResponseTopic(error_code=ErrorCode.NONE, name="a", partitions=())
    response = MetadataResponse(brokers=(), topics=(topic,) * TOO_MANY)
    written = encode_response(ApiKey.METADATA, 1, response)
    assert len(decode_response(ApiKey.METADATA, 1, written).topics) == TOO_MANY


def test_fetch_with_too_many_partitions_is_rejected() -> None:
    start = struct.pack(">iiiib", -1, 0, 0, 0, 0)
    partitions = struct.pack(">i", TOO_MANY) + bytes(16 * TOO_MANY)
    with pytest.raises(MalformedRequest, match="more than"):
        parse_fetch(start + struct.pack(">i", 1) + ONE_NAME + partitions, 0, 4)
    topics = struct.pack(">i", TOO_MANY) + (ONE_NAME + bytes(4)) * TOO_MANY
    with pytest.raises(MalformedRequest, match="more than"):
        parse_fetch(start + topics, 0, 4)


def test_produce_with_too_many_partitions_is_rejected() -> None:
    start = struct.pack(">hhi", -1, 1, 0)
    null = struct.pack(">ii", 0, -1)
    partitions = struct.pack(">i", TOO_MANY) + null * TOO_MANY
    with pytest.raises(MalformedRequest, match="more than"):
        parse_produce(start + struct.pack(">i", 1) + ONE_NAME + partitions, 0, 3)


def test_number_of_tagged_fields_is_limited() -> None:
    def tags(count: int) -> bytes:
        out = bytearray()
        write_varint(out, count)
        return bytes(out) + b"\x05\x00" * count

    assert skip_tagged_fields(tags(TAGS_MAX), 0, 1000) == len(tags(TAGS_MAX))
    with pytest.raises(MalformedRequest, match="tagged fields"):
        skip_tagged_fields(tags(TAGS_MAX + 1), 0, 1000)
    newest = APIS[ApiKey.FETCH].max_version
    with pytest.raises(MalformedRequest, match="tagged fields"):
        empty = struct.pack(">iiib", 0, 0, 0, 0) + struct.pack(">ii", 0, -1) + b"\1\1\1"
        parse_fetch(empty + tags(TAGS_MAX + 1), 0, newest)
