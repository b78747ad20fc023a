"""Payloads as text: what is detected, what is cut, and that bytes are never lost."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.console.messages.payloads import (
    PAYLOAD_BYTES_MAX,
    SHORT_BYTES,
    DecodedPayload,
    MessagePayload,
    PayloadFormat,
    PayloadWriter,
    schema_id_in,
)
from riverrun.console.messages.streams import FoundRecord
from riverrun.records.record import Record

FORMATS: list[PayloadFormat] = ["auto", "text", "json", "avro", "hex", "base64"]


def payload(data: bytes, form: PayloadFormat = "auto") -> MessagePayload:
    found = PayloadWriter(form).payload(data)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b"", "text", ""),
        (b"hello", "text", "hello"),
        ("grüße".encode(), "text", "grüße"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"[1, 2]", "json", "[1, 2]"),
        (b"42", "json", "42"),
        (b"{broken", "text", "{broken"),
        (b"\x00\x01\x02", "hex", "000102"),
        (b"\xff\xfe", "hex", "fffe"),
        (b"line\nline\ttab", "text", "line\nline\ttab"),
        (b"bell\x07", "hex", "62656c6c07"),
    ],
)
def test_form_is_detected(data: bytes, form: str, text: str) -> None:
    found = payload(data)
    assert (found.format, found.text, found.size) == (form, text, len(data))
    assert not found.truncated


@given(st.binary(max_size=300), st.sampled_from(FORMATS))
def test_bytes_are_never_lost(data: bytes, form: PayloadFormat) -> None:
    found = payload(data, form)
    if found.base64 is not None:
        assert base64.b64decode(found.base64) == data
    else:
        assert found.text.encode() == data
    assert found.size == len(data)
    json.dumps(found.text)


@pytest.mark.parametrize("letter", ["a", "ü", "😀"])
def test_long_text_is_cut_and_stays_text(letter: str) -> None:
    data = (letter * (PAYLOAD_BYTES_MAX + 1)).encode()
    found = payload(data)
    assert found.format == "text"
    assert found.truncated
    assert found.size == len(data)
    assert PAYLOAD_BYTES_MAX - 4 < len(found.text.encode()) <= PAYLOAD_BYTES_MAX
    whole = PayloadWriter("auto", payload_bytes_max=None).payload(data)
    assert whole is not None and whole.text.encode() == data and not whole.truncated


def test_long_json_is_cut_and_stays_json() -> None:
    data = json.dumps(["x" * 100] * 2000).encode()
    assert payload(data).format == "json"


def test_page_of_large_messages_is_bounded() -> None:
    writer = PayloadWriter("auto", total_bytes_max=3 * PAYLOAD_BYTES_MAX)
    sizes = [len(one.text) for _ in range(10) if (one := writer.payload(b"a" * 10**6))]
    assert sizes == [PAYLOAD_BYTES_MAX] * 3 + [SHORT_BYTES] * 7


def test_null_is_not_an_empty_payload() -> None:
    assert PayloadWriter("auto").payload(None) is None


def test_schema_id_is_shown_without_a_registry() -> None:
    data = b"\x00\x00\x00\x00\x07\x02a"
    found = payload(data)
    assert found.schema_id == 7
    assert found.format == "hex"
    assert schema_id_in(b"\x00\x00\x00\x00\x00a") is None
    assert schema_id_in(b"\x00\xff\xff\xff\xff") is None
    assert schema_id_in(b"text") is None


class OneSchema:
    def decoded(self, data: bytes) -> DecodedPayload | None:
        return DecodedPayload("avro", '{"price":1}') if data[4] == 7 else None


def test_registered_schema_decodes_a_payload() -> None:
    writer = PayloadWriter("auto", OneSchema())
    known = writer.payload(b"\x00\x00\x00\x00\x07\x02")
    assert known is not None
    assert (known.format, known.text, known.schema_id) == ("avro", '{"price":1}', 7)
    assert base64.b64decode(known.base64 or "") == b"\x00\x00\x00\x00\x07\x02"
    unknown = writer.payload(b"\x00\x00\x00\x00\x08\x02")
    assert unknown is not None and unknown.format == "hex"
    chosen = PayloadWriter("hex", OneSchema()).payload(b"\x00\x00\x00\x00\x07\x02")
    assert chosen is not None and chosen.format == "hex"


def test_message_has_the_facts_of_its_batch() -> None:
    record = Record(5, 1000, b"k", None, (("trace", b"1"), ("empty", None), ("\udcff", b"x")))
    message = PayloadWriter("auto").message(FoundRecord(2, record, 4, -1, False, True))
    assert (message.partition, message.offset, message.timestamp_ms) == (2, 5, 1000)
    assert message.timestamp_type == "append"
    assert message.codec == "zstd"
    assert message.producer_id is None
    assert message.value is None
    assert [header.name for header in message.headers] == ["trace", "empty", "\ufffd"]
    assert message.headers[1].value is None
