"""Records to text and back: printed records can be read, and invalid input is explained."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.admin.records.formats import (
    BadInput,
    PrintedRecord,
    escaped,
    formatter,
    parse_headers,
    parse_json,
    parse_line,
    unescape,
)
from riverrun.records.record import Headers, NewRecord, Record

NOW = 1_700_000_000_000
names = st.text(max_size=10)
data = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)


def as_json(text: str, headers: Headers = ()) -> tuple[NewRecord, int | None]:
    return parse_json(text.encode(), headers=headers, timestamp=NOW)


def row(record: Record) -> PrintedRecord:
    return PrintedRecord("t", 3, 0, record)


@settings(deadline=None)
@given(data, data, st.lists(st.tuples(names, data), max_size=3).map(tuple), st.integers(0, 2**60))
def test_json_round_trip(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp: int
) -> None:
    line = formatter("json")(row(Record(7, timestamp, key, value, headers)))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    record, partition = parse_json(line, headers=(), timestamp=0)
    assert record == NewRecord(value, key, timestamp, headers)
    assert partition == 3
    assert json.loads(line)["offset"] == 7


def test_json_fields_typed_by_hand() -> None:
    record, partition = as_json('{"value": {"n": [1, null]}, "key": 5, "headers": {"h": "1"}}')
    assert record == NewRecord(b'{"n":[1,null]}', b"5", NOW, (("h", b"1"),))
    assert partition is None
    assert as_json('{"value": null}', (("a", b"b"),))[0] == NewRecord(
        None, None, NOW, (("a", b"b"),)
    )


def test_a_name_that_is_not_utf8_round_trips() -> None:
    header = b"caf\xe9".decode("utf-8", "surrogateescape")
    line = formatter("json")(row(Record(0, 0, None, b"", ((header, b""),))))
    assert line.decode("ascii").count("\\udce9") == 1
    assert parse_json(line, headers=(), timestamp=0)[0].headers == ((header, b""),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("3", "expected an object"),
        ("{}", "no value"),
        ('{"value": "a", "vlaue": 1}', "unknown field 'vlaue'"),
        ('{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        ('{"value_base64": "?"}', "not base64"),
        ('{"value_base64": 3}', "not base64"),
        ('{"value": "a", "partition": "0"}', "whole numbers"),
        ('{"value": "a", "timestamp": true}', "whole numbers"),
        ('{"value": "a", "timestamp": 9223372036854775808}', "whole numbers"),
        ('{"value": "\\ud800"}', "lone surrogate"),
        ('{"value": ["\\ud800"]}', "lone surrogate"),
        ('{"value": "a", "headers": {"\\ud800": ""}}', "lone surrogate"),
        ("[" * 100_000, "not JSON"),
        ('{"value": "a", "headers": 5}', "headers are"),
        ('{"value": "a", "headers": [{"value": "x"}]}', "a header is"),
    ],
)
def test_bad_json_is_explained(line: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        as_json(line)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_break_the_parser(line: bytes) -> None:
    try:
        parse_json(line, headers=(), timestamp=0)
    except BadInput:
        return


def test_lines_with_and_without_a_key() -> None:
    whole = parse_line(b"a:b:c", separator=None, headers=(), timestamp=NOW)
    assert whole == NewRecord(b"a:b:c", None, NOW)
    parted = parse_line(b"a:b:c", separator=b":", headers=(("h", None),), timestamp=NOW)
    assert parted == NewRecord(b"b:c", b"a", NOW, (("h", None),))
    with pytest.raises(BadInput, match="no key separator ':' in 'abc'"):
        parse_line(b"abc", separator=b":", headers=(), timestamp=NOW)


def test_headers_of_flags() -> None:
    assert parse_headers(["a=1", "b=", "c", "d=x=y"]) == (
        ("a", b"1"), ("b", b""), ("c", None), ("d", b"x=y"),
    )  # fmt: skip
    with pytest.raises(BadInput):
        parse_headers(["=1"])


@pytest.mark.parametrize(
    ("text", "meant"),
    [("\\t", "\t"), ("a\\nb", "a\nb"), ("\\\\n", "\\n"), ("\\x", "\\x"), ("\\", "\\"), ("|", "|")],
)
def test_escapes(text: str, meant: str) -> None:
    assert unescape(text) == meant


RECORD = Record(42, NOW, b"key", b"value", (("a", b"1"), ("b", None)))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%p %o %k %v\\n", b"3 42 key value\n"),
        ("%t@%T:%h", b"topic@1700000000000:a=1,b"),
        ("%K/%V", b"3/5"),
        ("%e %s", b"9 11"),
        ("100%%\\t%v%", b"100%\tvalue%"),
        ("%%p%p", b"%p3"),
    ],
)
def test_templates(template: str, text: bytes) -> None:
    assert formatter(template)(PrintedRecord("topic", 3, 9, RECORD)) == text


def test_null_is_empty_in_text_and_minus_one_in_sizes() -> None:
    empty = Record(0, NOW, None, None)
    assert formatter("text")(row(empty)) == b"\n"
    assert formatter("%K %V %s")(row(empty)) == b"-1 -1 0"


def test_values_are_printed_byte_for_byte() -> None:
    assert formatter("text")(row(Record(0, NOW, None, b"\xff\x00"))) == b"\xff\x00\n"


HOSTILE = "tab\t new\n bell\x07 \x1b[2J \x7f \u009b1m \u202eback ü €".encode() + b" \xff\xfe"


def test_a_terminal_gets_escapes_instead_of_control_characters() -> None:
    shown = formatter("text", escaped)(row(Record(0, NOW, None, HOSTILE)))
    assert shown.decode() == (
        "tab\t new\n bell\\x07 \\x1b[2J \\x7f \\u009b1m \\u202eback ü € \\xff\\xfe\n"
    )
    record = Record(0, NOW, b"\x1b", b"\x1b", (("\x1b", b"\x1b"),))
    assert formatter("%k %v %h", escaped)(row(record)) == rb"\x1b \x1b \x1b=\x1b"


def test_json_on_a_terminal_is_still_json() -> None:
    record = Record(0, NOW, None, HOSTILE[:-3])
    line = formatter("json", escaped)(row(record))
    assert b"\x1b" not in line and "\u009b".encode() not in line and "\u202e".encode() not in line
    assert parse_json(line, headers=(), timestamp=0)[0].value == HOSTILE[:-3]


def test_an_unknown_leader_epoch_is_null_in_json() -> None:
    record = Record(0, NOW, b"k", b"vv", (("h", b"1"),))
    fields = json.loads(formatter("json")(PrintedRecord("t", 0, -1, record)))
    assert (fields["leader_epoch"], fields["size"]) == (None, 5)
    assert json.loads(formatter("json")(PrintedRecord("t", 0, 4, record)))["leader_epoch"] == 4


def test_time_of_a_record_in_utc() -> None:
    assert formatter("%D")(row(Record(0, NOW, None, b""))) == b"2023-11-14T22:13:20.000Z"
    assert formatter("%D")(row(Record(0, 2**62, None, b""))) == b""


@pytest.mark.parametrize("form", ["yaml", "%q", "%v %x\\n"])
def test_unknown_formats_are_rejected(form: str) -> None:
    with pytest.raises(BadInput, match=r"known are|expected"):
        formatter(form)
