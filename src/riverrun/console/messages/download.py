"""Messages as a file: JSON lines that ``riverrun produce --format json`` reads, or CSV.

The file is written as it is read, at the speed of the reader. It ends where the topic ended when it
began.

Spreadsheets run cells that begin like a formula. In CSV such a text gets a single quote before it,
as OWASP recommends for CSV injection. JSON lines are exact.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from riverrun.admin.records.formats import JsonText, PrintedRecord, formatter
from riverrun.console.messages.payloads import SchemaDecoder
from riverrun.console.messages.reading import ScanLimits, TopicScan
from riverrun.console.messages.streams import FoundRecord
from riverrun.records.record import Record

PAGE_RECORDS: Final = 1000
PAGE_LIMITS: Final = ScanLimits(seconds=10.0)
NO_EPOCH: Final = -1
COLUMNS: Final = (
    "partition", "offset", "timestamp_ms", "key", "value", "headers", "key_base64", "value_base64",
)  # fmt: skip
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)

Prepare = Callable[[Sequence[FoundRecord]], Awaitable[SchemaDecoder]]
"""Decodes the payloads of some records by their schemas."""


async def lines_of(
    scan: TopicScan, topic: str, *, is_csv: bool, limit: int, prepare: Prepare
) -> AsyncIterator[bytes]:
    """The parts of the file. Raises KafkaError and OSError, which cut it off."""
    if is_csv:
        yield csv_rows([COLUMNS])
    left = limit
    while left:
        wanted = min(left, PAGE_RECORDS)
        page = await scan.page(wanted, PAGE_LIMITS)
        schemas = await prepare(page.found)
        left -= len(page.found)
        if page.found:
            yield csv_part(page.found, schemas) if is_csv else json_part(topic, page.found, schemas)
        is_at_end = page.is_complete and len(page.found) < wanted
        if is_at_end or page.before == page.after:
            return


def json_part(topic: str, records: Sequence[FoundRecord], schemas: SchemaDecoder) -> bytes:
    form = formatter("json")
    return b"".join(
        form(PrintedRecord(topic, found.partition, NO_EPOCH, decoded(found.record, schemas)))
        for found in records
    )


def decoded(record: Record, schemas: SchemaDecoder) -> Record:
    """Payloads with a schema as JSON, others as they are."""
    return replace(record, key=_decoded(record.key, schemas), value=_decoded(record.value, schemas))


def _decoded(data: bytes | None, schemas: SchemaDecoder) -> bytes | None:
    found = None if data is None else schemas.decoded(data)
    return data if found is None else JsonText(found.text.encode("utf-8", "surrogatepass"))


def csv_part(records: Sequence[FoundRecord], schemas: SchemaDecoder) -> bytes:
    return csv_rows([_csv_row(found, schemas) for found in records])


def _csv_row(found: FoundRecord, schemas: SchemaDecoder) -> Sequence[object]:
    record = decoded(found.record, schemas)
    key, key_bytes = _text_or_base64(record.key)
    value, value_bytes = _text_or_base64(record.value)
    headers = [[name, *_text_or_base64(data)] for name, data in record.headers]
    shown = msgspec.json.encode(_printable(headers)).decode() if headers else ""
    return (
        found.partition, record.offset, record.timestamp, as_cell(key), as_cell(value), shown,
        key_bytes, value_bytes,
    )  # fmt: skip


def as_cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula. A number is none."""
    is_risky = text.startswith(FORMULA_STARTS) and NUMBER.fullmatch(text) is None
    return f"'{text}" if is_risky else text


def _text_or_base64(data: bytes | None) -> tuple[str, str]:
    if data is None:
        return "", ""
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(data).decode()


def _printable(headers: list[list[str]]) -> list[list[str]]:
    """A header name may not be UTF-8."""
    return [[text.encode("utf-8", "replace").decode() for text in header] for header in headers]


def csv_rows(rows: Sequence[Sequence[object]]) -> bytes:
    output = io.StringIO()
    csv.writer(output).writerows(rows)
    return output.getvalue().encode("utf-8", "replace")
