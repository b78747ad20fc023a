"""Records as text and back: lines and JSON for ``produce``; these and templates for ``consume``.

``produce --format json`` reads the output of ``consume --format json``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from riverrun.admin.times import in_utc
from riverrun.records.record import Headers, NewRecord, Record


@dataclass(frozen=True, slots=True)
class PrintedRecord:
    """A record and its origin. The leader epoch is -1 if it is unknown."""

    topic: str
    partition: int
    leader_epoch: int
    record: Record


Formatter = Callable[[PrintedRecord], bytes]
"""The text to print for a record, with its line end."""
Show = Callable[[bytes], bytes]
"""How keys, values and headers are printed: as they are, or with escapes for a terminal."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_JSON_FIELDS = (
    "topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64",
    "headers", "leader_epoch", "size",
)  # fmt: skip
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, except tab and newline, and characters that reorder text."""


class JsonText(bytes):
    """A decoded key or value. JSON output contains it as JSON instead of as a string."""


class BadInput(ValueError):
    """A line, flag or template that cannot be parsed, with an explanation."""


def unescape(text: str) -> str:
    r"""Escapes such as ``\t``, as typed on a command line."""
    parts: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            parts.append(character)
            continue
        following = next(characters, "\\")
        parts.append(_ESCAPES.get(following, "\\" + following))
    return "".join(parts)


def parse_headers(texts: list[str]) -> Headers:
    """``NAME=VALUE`` of a repeated --header; without ``=`` the value is null."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, found, value = text.partition("=")
        if not name:
            raise BadInput(f"--header {text}: expected NAME=VALUE, for example --header trace=42")
        headers.append((name, value.encode("utf-8", "surrogateescape") if found else None))
    return tuple(headers)


def parse_line(
    line: bytes, *, separator: bytes | None, headers: Headers, timestamp: int
) -> NewRecord:
    """A line of text: its value, or key and value with a separator."""
    if separator is None:
        return NewRecord(line, None, timestamp, headers)
    key, found, value = line.partition(separator)
    if not found:
        raise BadInput(
            f"no key separator {separator.decode('utf-8', 'replace')!r} in {_shortened(line)}"
        )
    return NewRecord(value, key, timestamp, headers)


def parse_json(line: bytes, *, headers: Headers, timestamp: int) -> tuple[NewRecord, int | None]:
    """A JSON object: the record, and the partition that it names."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error} in {_shortened(line)}") from None
    if not isinstance(row, dict):
        raise BadInput(f'expected an object such as {{"value": "hello"}}, not {_shortened(line)}')
    unknown = [name for name in row if name not in _JSON_FIELDS]
    if unknown:
        raise BadInput(f"unknown field {unknown[0]!r}; known are {', '.join(_JSON_FIELDS)}")
    if "value" not in row and "value_base64" not in row:
        raise BadInput(f"no value in {_shortened(line)}; write null explicitly")
    own = row.get("timestamp", timestamp)
    partition = row.get("partition")
    if not _is_whole(own) or not (partition is None or _is_whole(partition)):
        raise BadInput(f"timestamp and partition are whole numbers, not as in {_shortened(line)}")
    return (
        NewRecord(_bytes(row, "value"), _bytes(row, "key"), own, headers + _headers(row)),
        partition,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**63


def _bytes(row: Mapping[str, Any], name: str) -> bytes | None:
    """Strings as they are, null as null, other JSON as JSON, and binary data as base64."""
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        if row.get(name) is not None:
            raise BadInput(f"both {name} and {name}_base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadInput(f"{name}_base64 is not base64") from None
    return _bytes_of(row.get(name))


def _bytes_of(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _encoded(value)
    return _encoded(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _encoded(text: str) -> bytes:
    """Restore bytes that were not UTF-8, as in header names."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadInput(f"{text[:60]!a} is not valid text: it has a lone surrogate") from None


def _headers(row: Mapping[str, Any]) -> Headers:
    """A list of objects, as we print them; or one object, which is easier to type."""
    found = row.get("headers") or []
    if isinstance(found, dict):
        return tuple((_checked(name), _bytes_of(value)) for name, value in found.items())
    if not isinstance(found, list):
        raise BadInput('headers are an object or a list of {"name": ..., "value": ...}')
    headers: list[tuple[str, bytes | None]] = []
    for header in found:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise BadInput('a header is an object such as {"name": "trace", "value": "42"}')
        headers.append((_checked(header["name"]), _bytes(header, "value")))
    return tuple(headers)


def _checked(name: str) -> str:
    _encoded(name)
    return name


def _shortened(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else text[:60] + "…")


def as_they_are(data: bytes) -> bytes:
    return data


def escaped(data: bytes) -> bytes:
    """For a terminal: bytes that are not UTF-8, and characters that could control the terminal,
    become escapes such as ``\\x1b``."""
    text = data.decode("utf-8", "backslashreplace")
    return _HIDDEN.sub(lambda found: _escape(found[0]), text).encode()


def _escape(character: str) -> str:
    return f"\\x{ord(character):02x}" if character < "\x80" else f"\\u{ord(character):04x}"


def formatter(form: str, show: Show = as_they_are) -> Formatter:
    """By name, or a template; raises ``BadInput``."""
    if form == "text":
        return lambda row: show(row.record.value or b"") + b"\n"
    if form == "json":
        return lambda row: _as_json(row, is_safe=show is escaped)
    if "%" not in form:
        raise BadInput(
            f"--format {form}: expected text, json or a template such as '%p %o %k %v\\n'"
        )
    return _template(form, show)


def _as_json(row: PrintedRecord, *, is_safe: bool) -> bytes:
    record = row.record
    fields: dict[str, object] = {
        "topic": row.topic,
        "partition": row.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    fields.update(_json_field("key", record.key))
    fields.update(_json_field("value", record.value))
    if record.headers:
        fields["headers"] = [
            {"name": name, **_json_field("value", value)} for name, value in record.headers
        ]
    fields["leader_epoch"] = None if row.leader_epoch < 0 else row.leader_epoch
    fields["size"] = record_size(record)
    text = json.dumps(fields, ensure_ascii=False)
    if is_safe:  # in JSON, only C1 characters and the like are left
        text = _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    # A header name may not be UTF-8; JSON has an escape for each of its bytes.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _json_field(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    if isinstance(data, JsonText):
        return {name: json.loads(data)}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _headers_text(headers: Headers) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + (b"" if value is None else b"=" + value)
        for name, value in headers
    )


def record_size(record: Record) -> int:
    """Bytes of key, value and headers."""
    headers = sum(
        len(name.encode("utf-8", "surrogateescape")) + len(value or b"")
        for name, value in record.headers
    )
    return len(record.key or b"") + len(record.value or b"") + headers


_FACTS: Mapping[str, Callable[[PrintedRecord], bytes]] = {
    "t": lambda row: row.topic.encode(),
    "p": lambda row: b"%d" % row.partition,
    "o": lambda row: b"%d" % row.record.offset,
    "T": lambda row: b"%d" % row.record.timestamp,
    "D": lambda row: in_utc(row.record.timestamp).encode(),
    "e": lambda row: b"%d" % row.leader_epoch,
    "K": lambda row: b"%d" % _size(row.record.key),
    "V": lambda row: b"%d" % _size(row.record.value),
    "s": lambda row: b"%d" % record_size(row.record),
    "%": lambda _row: b"%",
}
_DATA: Mapping[str, Callable[[PrintedRecord], bytes]] = {
    "k": lambda row: row.record.key or b"",
    "v": lambda row: row.record.value or b"",
    "h": lambda row: _headers_text(row.record.headers),
}
"""Placeholders for the bytes of clients."""


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _placeholder(form: str, letter: str, show: Show) -> Callable[[PrintedRecord], bytes]:
    if letter in _DATA:
        data_of = _DATA[letter]
        return lambda row: show(data_of(row))
    if letter not in _FACTS:
        known = " ".join(f"%{name}" for name in [*_FACTS, *_DATA])
        raise BadInput(f"--format {form}: %{letter} is unknown; known are {known}")
    return _FACTS[letter]


def _template(form: str, show: Show) -> Formatter:
    parts: list[bytes | Callable[[PrintedRecord], bytes]] = []
    first, *others = form.split("%")
    parts.append(_encoded(unescape(first)))
    pending = iter(others)
    for piece in pending:
        parts.append(_placeholder(form, piece[:1] or "%", show))
        # "%%" splits into an empty piece and the text after the second sign.
        rest = piece[1:] if piece else next(pending, "")
        parts.append(_encoded(unescape(rest)))

    def fill(row: PrintedRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(row) for part in parts)

    return fill
