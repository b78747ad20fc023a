"""Keys, values and headers as text: detected, or in the form that a person chooses.

Bytes that the text does not have exactly are added as base64. Lists contain only the start of large
payloads; a message of its own is whole.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from riverrun.admin.records.formats import record_size
from riverrun.console.messages.streams import FoundRecord
from riverrun.records.compression import Compression

PAYLOAD_BYTES_MAX: Final = 64 * 1024
"""Of one payload in a list."""
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of all payloads in a list. Then only the start of each is shown."""
WHOLE_PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
"""Of a page that ends early, so that payloads are not cut to their start. The last message of such
a page may exceed it."""
SHORT_BYTES: Final = 1024
CONFLUENT_HEADER_BYTES: Final = 5
"""A zero byte and the id of a schema."""

PayloadFormat = Literal["auto", "text", "json", "avro", "hex", "base64"]
_HIDDEN: Final = frozenset(chr(code) for code in (*range(32), 127)) - {"\t", "\n", "\r"}
_JSON_STARTS: Final = b'{["0123456789-tfn'


class MessagePayload(Struct, frozen=True, kw_only=True):
    """A key, a value or the value of a header."""

    format: str
    """text, json, hex, base64, or the format of a registered schema: avro, protobuf."""
    text: str
    size: int
    """Bytes as they are stored."""
    truncated: bool = False
    schema_id: int | None = None
    base64: str | None = None
    """The bytes, if they are not the text in UTF-8."""


class MessageHeader(Struct, frozen=True, kw_only=True):
    name: str
    value: MessagePayload | None


class Message(Struct, frozen=True, kw_only=True):
    """A record of a topic."""

    partition: int
    offset: Annotated[int, Meta(ge=0)]
    timestamp_ms: int
    timestamp_type: str
    """create: by the producer; append: by the broker."""
    key: MessagePayload | None
    value: MessagePayload | None
    headers: list[MessageHeader]
    size: int
    """Bytes of key, value and headers."""
    codec: str
    producer_id: int | None
    transactional: bool


class DecodedPayload(Struct, frozen=True):
    """A payload that a registered schema describes, as JSON."""

    format: str
    text: str


class SchemaDecoder(Protocol):
    """Decodes payloads that name a schema; see ``schemas``."""

    def decoded(self, data: bytes) -> DecodedPayload | None:
        """None if the schema is not known, or the payload does not fit it."""
        ...


class NoSchemas:
    """A console without a registry."""

    def decoded(self, data: bytes) -> DecodedPayload | None:
        return None


class PayloadWriter:
    """Writes the payloads of one response, within its limits."""

    def __init__(
        self,
        form: PayloadFormat,
        schemas: SchemaDecoder | None = None,
        *,
        payload_bytes_max: int | None = PAYLOAD_BYTES_MAX,
        total_bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        """``payload_bytes_max`` None: whole payloads."""
        self._form = form
        self._schemas: SchemaDecoder = schemas or NoSchemas()
        self._payload_bytes_max = payload_bytes_max
        self._left = total_bytes_max

    def message(self, found: FoundRecord) -> Message:
        record = found.record
        return Message(
            partition=found.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            timestamp_type="append" if found.has_append_time else "create",
            key=self.payload(record.key),
            value=self.payload(record.value),
            headers=[
                MessageHeader(name=_shown(name), value=self.payload(value))
                for name, value in record.headers
            ],
            size=record_size(record),
            codec=Compression(found.compression).name.lower(),
            producer_id=None if found.producer_id < 0 else found.producer_id,
            transactional=found.is_transactional,
        )

    def payload(self, data: bytes | None) -> MessagePayload | None:
        if data is None:
            return None
        decoded = None
        if self._form in ("auto", "avro") and schema_id_in(data) is not None:
            decoded = self._schemas.decoded(data)
        limit = self._limit()
        shown = data if limit is None else data[:limit]
        if limit is not None:
            self._left -= len(shown)
        if decoded is not None:
            text = decoded.text if limit is None else decoded.text[:limit]
            form, is_cut = decoded.format, len(text) < len(decoded.text)
        else:
            form, text = in_form(shown, self._form, is_whole=len(shown) == len(data))
            is_cut = len(shown) < len(data)
        is_exact = decoded is None and _is_exact(form, text, shown)
        return MessagePayload(
            format=form,
            text=text,
            size=len(data),
            truncated=is_cut,
            schema_id=schema_id_in(data),
            base64=None if is_exact else base64.b64encode(shown).decode(),
        )

    def _limit(self) -> int | None:
        if self._payload_bytes_max is None:
            return None
        return self._payload_bytes_max if self._left > 0 else SHORT_BYTES


def listed_bytes(found: FoundRecord) -> int:
    """How much a message takes of ``PAGE_BYTES_MAX``."""
    record = found.record
    payloads = (record.key, record.value, *(value for _, value in record.headers))
    return sum(min(len(data), PAYLOAD_BYTES_MAX) for data in payloads if data is not None)


def in_form(data: bytes, form: PayloadFormat, *, is_whole: bool) -> tuple[str, str]:
    """The form that is used, and the text."""
    if form == "hex":
        return "hex", data.hex()
    if form == "base64":
        return "base64", base64.b64encode(data).decode()
    if form == "text":
        return "text", data.decode("utf-8", "replace")
    text = _readable(data, is_whole=is_whole)
    if text is None:
        # A chosen form that does not fit is still shown; otherwise bytes are.
        return ("text", data.decode("utf-8", "replace")) if form == "json" else ("hex", data.hex())
    return ("json", text) if _is_json(data, is_whole=is_whole) else ("text", text)


def _readable(data: bytes, *, is_whole: bool) -> str | None:
    """The text, or None if the bytes are no text. The cut may be inside a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return None if any(letter in _HIDDEN for letter in text[:SHORT_BYTES]) else text


def _is_json(data: bytes, *, is_whole: bool) -> bool:
    """Whether a text is JSON. The start of a long text is, if it looks like an object or a list."""
    start = data[:64].lstrip()[:1]
    if not start or start not in _JSON_STARTS:
        return False
    if not is_whole:
        return start in b"{["
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _is_exact(form: str, text: str, data: bytes) -> bool:
    """Whether the text in UTF-8 is the payload."""
    if form not in ("text", "json"):
        return False
    return text.encode("utf-8", "surrogatepass") == data


def schema_id_in(data: bytes) -> int | None:
    """The id of a schema, if the payload begins like that of a schema registry."""
    if len(data) < CONFLUENT_HEADER_BYTES or data[0] != 0:
        return None
    number = int.from_bytes(data[1:CONFLUENT_HEADER_BYTES], "big")
    return number if 0 < number < 2**31 else None


def _shown(name: str) -> str:
    """A header name may not be UTF-8. JSON has no such strings."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
