"""Records of REST v3: one, many as concatenated JSON, or a batch.

Each record is answered by a report with its own ``error_code``, in the order of the records, in a
stream while the request goes on. The HTTP status is 200 as soon as the first record was read.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct, field
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from riverrun.console.api.v3.frame import (
    V3Error,
    V3Problem,
    V3Request,
    as_v3,
    invalid,
    operation,
)
from riverrun.console.json_stream import JsonSplitter, JsonStreamInvalid
from riverrun.console.record_writer import Outcome, OutgoingRecord, RestRecordWriter, WrittenRecord
from riverrun.console.routing import BODY_BYTES_MAX, JSON
from riverrun.records.record import NewRecord

BINARY, TEXT, JSON_VALUE = "BINARY", "STRING", "JSON"
TYPES: Final = (BINARY, JSON_VALUE, TEXT)
NULL: Final = b"null"
BATCH_ENTRIES_MAX: Final = 1_000
GROUP_RECORDS_MAX: Final = 1_000
"""Records that are written at once."""
WRITE_SECONDS_MAX: Final = 120.0
OK: Final = 200
MULTI_STATUS: Final = 207
NOT_COMPRESSED: Final = {"Content-Encoding": "identity"}
"""Compression would hold reports back until many of them are together."""


class V3Data(Struct, kw_only=True):
    """A key or a value: base64 with BINARY, any JSON with JSON, a text with STRING. Null data is a
    null key or value."""

    type: str | None = None
    data: Raw = field(default_factory=lambda: Raw(NULL))


class V3Header(Struct, kw_only=True):
    """A header. Its value is base64."""

    name: str
    value: str | None = None


class V3Record(Struct, kw_only=True):
    """A record to write. Without a partition, the key decides."""

    partition_id: Annotated[int, Meta(ge=0)] | None = None
    headers: list[V3Header] = field(default_factory=list)
    key: V3Data | None = None
    value: V3Data | None = None
    timestamp: datetime | None = None


class V3Entry(V3Record, kw_only=True):
    """A record of a batch. Its id is in the response."""

    id: Annotated[str, Meta(min_length=1, max_length=80)]


class V3Batch(Struct, kw_only=True):
    """Records with different ids."""

    entries: Annotated[list[V3Entry], Meta(min_length=1, max_length=BATCH_ENTRIES_MAX)]


class V3Size(Struct, frozen=True, kw_only=True):
    """The type of a key or value, and its bytes."""

    type: str
    size: int


class V3Delivered(Struct, frozen=True, kw_only=True):
    """The report of a record that was written. Of one that was not, there is an error."""

    error_code: int = OK
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str
    key: V3Size | None
    value: V3Size | None


class V3EntryDelivered(V3Delivered, frozen=True, kw_only=True):
    """The report of a record of a batch."""

    id: str


class V3EntryFailed(Struct, frozen=True, kw_only=True):
    """A record of a batch that was not written."""

    id: str
    error_code: int
    message: str


class V3BatchResult(Struct, frozen=True, kw_only=True):
    """The reports of a batch."""

    successes: list[V3EntryDelivered]
    failures: list[V3EntryFailed]


class DuplexResponse(StreamingResponse):
    """A response that starts before the request has ended. Starlette's own would wait for the end
    of the connection at the same time, and take away what we read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def produce_records(request: V3Request) -> Response:
    """Write records, one or several as concatenated JSON. With chunked transfer encoding, reports
    are sent while records arrive: the client has to read while it writes."""
    _check_content_type(request)
    topic = await request.topic(request.params["topic_name"])
    indexes = [row.partition_index for row in topic.partitions]
    writer = RestRecordWriter(request.pool, topic.name or "", indexes)
    is_stream = "chunked" in request.inner.raw.headers.get("transfer-encoding", "").lower()
    groups = _groups(request) if is_stream else _groups_at_end(request)
    first = await anext(groups, None)
    if first is None:
        raise invalid("The request has no record.")
    if isinstance(first, V3Problem):
        raise first
    try:
        msgspec.json.decode(first[0], type=V3Record)
    except msgspec.DecodeError as error:
        raise invalid(f"{error}.") from None
    reports = _reports(request, writer, first, groups)
    if is_stream:
        sent = request.inner.access.streamed(reports)
        return DuplexResponse(sent, media_type=JSON, headers=NOT_COMPRESSED)
    return Response(b"".join([each async for each in reports]), media_type=JSON)


def _check_content_type(request: V3Request) -> None:
    found = request.inner.raw.headers.get("content-type", JSON)
    if found.partition(";")[0].strip().lower() != JSON:
        raise invalid(f"The content type is {found}: expected {JSON}.", 415)


async def _groups(request: V3Request) -> AsyncIterator[list[bytes] | V3Problem]:
    """The records of a request as they arrive. A problem ends them."""
    splitter = JsonSplitter()
    try:
        async for chunk in request.inner.raw.stream():
            found = splitter.feed(chunk)
            if found:
                yield found
        splitter.close()
    except JsonStreamInvalid as error:
        yield invalid(f"{error}.")
    except ClientDisconnect:
        return


async def _groups_at_end(request: V3Request) -> AsyncIterator[list[bytes] | V3Problem]:
    """The records of a request when it has arrived. Many clients read no response before they have
    sent everything."""
    found: list[bytes] = []
    failure: V3Problem | None = None
    size = 0
    async for group in _groups(request):
        if isinstance(group, V3Problem):
            failure = group
            break
        found += group
        size += sum(map(len, group))
        if size > BODY_BYTES_MAX:
            raise invalid(f"The request is larger than {BODY_BYTES_MAX} bytes.", 413)
    for start in range(0, len(found), GROUP_RECORDS_MAX):
        yield found[start : start + GROUP_RECORDS_MAX]
    if failure is not None:
        yield failure


async def _reports(
    request: V3Request,
    writer: RestRecordWriter,
    first: list[bytes],
    groups: AsyncIterator[list[bytes] | V3Problem],
) -> AsyncIterator[bytes]:
    yield await _write(request, writer, first)
    async for group in groups:
        if isinstance(group, V3Problem):
            yield _line(_error(group))
            return
        yield await _write(request, writer, group)


async def _write(request: V3Request, writer: RestRecordWriter, texts: Sequence[bytes]) -> bytes:
    """Write a group of records; the reports of all of them."""
    rows: list[V3Record | V3Problem] = []
    records: list[OutgoingRecord] = []
    for text in texts:
        try:
            record = msgspec.json.decode(text, type=V3Record)
            records.append(_outgoing(record))
            rows.append(record)
        except msgspec.DecodeError as error:
            rows.append(invalid(f"{error}."))
        except V3Problem as error:
            rows.append(error)
    outcomes = iter(await writer.write(records))
    lines = bytearray()
    for row in rows:
        if isinstance(row, V3Problem):
            lines += _line(_error(row))
        else:
            lines += _line(_report(request, row, next(outcomes)))
    return bytes(lines)


def _line(report: Struct) -> bytes:
    return msgspec.json.encode(report) + b"\n"


def _error(failure: V3Problem) -> V3Error:
    return V3Error(error_code=failure.error_code, message=failure.message)


def _report(request: V3Request, row: V3Record, outcome: Outcome) -> V3Delivered | V3Error:
    if not isinstance(outcome, WrittenRecord):
        return _error(as_v3(outcome))
    return V3Delivered(**_delivered(request, row, outcome))


def _delivered(request: V3Request, row: V3Record, written: WrittenRecord) -> dict[str, Any]:
    moment = datetime.fromtimestamp(written.timestamp_ms / 1000, UTC)
    return {
        "cluster_id": request.cluster_id,
        "topic_name": request.params["topic_name"],
        "partition_id": written.partition,
        "offset": written.offset,
        "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "key": _size(row.key),
        "value": _size(row.value),
    }


def _size(data: V3Data | None) -> V3Size | None:
    content = _content(data)
    if data is None or content is None:
        return None
    return V3Size(type=(data.type or "").upper(), size=len(content))


def _outgoing(row: V3Record) -> OutgoingRecord:
    """Raises ``V3Problem``."""
    moment_ms = int(time.time() * 1000)
    if row.timestamp is not None:
        aware = row.timestamp if row.timestamp.tzinfo else row.timestamp.replace(tzinfo=UTC)
        moment_ms = int(aware.timestamp() * 1000)
    record = NewRecord(
        value=_content(row.value),
        key=_content(row.key),
        timestamp=moment_ms,
        headers=tuple((one.name, _bytes(one.value, "header")) for one in row.headers),
    )
    return OutgoingRecord(record=record, partition=row.partition_id)


def _content(data: V3Data | None) -> bytes | None:
    """The bytes of a key or value. Raises ``V3Problem``."""
    if data is None or bytes(data.data) == NULL:
        return None
    kind = (data.type or "").upper()
    if kind == JSON_VALUE:
        return bytes(data.data)
    if kind not in TYPES:
        raise invalid(f"The type {data.type} is not supported: use {', '.join(TYPES)}.", 422)
    try:
        text = msgspec.json.decode(data.data, type=str)
    except msgspec.ValidationError:
        raise invalid(f"Data of type {kind} must be a text.") from None
    return text.encode() if kind == TEXT else _bytes(text, "data")


def _bytes(text: str | None, what: str) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"The {what} is not valid base64.") from None


async def produce_batch(request: V3Request) -> Response:
    """Write a batch. The status is 207: each record succeeds or fails by itself."""
    body: V3Batch = request.body
    if len({entry.id for entry in body.entries}) < len(body.entries):
        raise invalid("The ids of the entries are not distinct.", 422)
    topic = await request.topic(request.params["topic_name"])
    indexes = [row.partition_index for row in topic.partitions]
    writer = RestRecordWriter(request.pool, topic.name or "", indexes)
    failures: list[V3EntryFailed] = []
    entries: list[V3Entry] = []
    records: list[OutgoingRecord] = []
    for entry in body.entries:
        try:
            records.append(_outgoing(entry))
            entries.append(entry)
        except V3Problem as error:
            failures.append(_failed(entry, error))
    successes: list[V3EntryDelivered] = []
    for entry, outcome in zip(entries, await writer.write(records), strict=True):
        if isinstance(outcome, WrittenRecord):
            fields = _delivered(request, entry, outcome)
            successes.append(V3EntryDelivered(id=entry.id, **fields))
        else:
            failures.append(_failed(entry, as_v3(outcome)))
    result = V3BatchResult(successes=successes, failures=failures)
    return Response(msgspec.json.encode(result), MULTI_STATUS, media_type=JSON)


def _failed(entry: V3Entry, failure: V3Problem) -> V3EntryFailed:
    return V3EntryFailed(id=entry.id, error_code=failure.error_code, message=failure.message)


ENDPOINTS = (
    *operation(
        "POST",
        "topics/{topic_name}/records",
        produce_records,
        "Write records, one or several as concatenated JSON",
        response=V3Delivered,
        seconds_max=WRITE_SECONDS_MAX,
    ),
    *operation(
        "POST",
        "topics/{topic_name}/records:batch",
        produce_batch,
        "Write a batch of records",
        body=V3Batch,
        response=V3BatchResult,
        status=MULTI_STATUS,
        seconds_max=WRITE_SECONDS_MAX,
    ),
)
