"""Messages as CSV: spreadsheets must not run what a message contains."""

from __future__ import annotations

import csv
import io
import json

import pytest

from riverrun.console.messages.download import COLUMNS, csv_part, csv_rows, json_part
from riverrun.console.messages.payloads import NoSchemas
from riverrun.console.messages.streams import FoundRecord
from riverrun.records.record import Record


def found(text: bytes | None) -> FoundRecord:
    record = Record(3, 1_700_000_000_000, text, text, (("=h", text),))
    return FoundRecord(1, record, 0, -1, False, False)


def row_of(text: bytes | None) -> dict[str, str]:
    table = csv_rows([COLUMNS]) + csv_part([found(text)], NoSchemas())
    (row,) = csv.DictReader(io.StringIO(table.decode(), newline=""))
    return row


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠1"]
)
def test_a_text_that_looks_like_a_formula_gets_a_quote(text: str) -> None:
    row = row_of(text.encode())
    assert (row["key"], row["value"]) == (f"'{text}", f"'{text}")
    assert row["headers"].startswith("[")
    assert (row["partition"], row["offset"], row["timestamp_ms"]) == ("1", "3", "1700000000000")


@pytest.mark.parametrize("text", ["", "plain", "a=1", "'quoted", "-5", "+3.5e-7", "12", " =1"])
def test_other_texts_and_numbers_stay_as_they_are(text: str) -> None:
    assert row_of(text.encode())["value"] == text


def test_bytes_and_absent_values_stay_as_they_are() -> None:
    row = row_of(b"\xfb\xff")
    assert (row["value"], row["value_base64"]) == ("", "+/8=")
    assert row_of(None)["value"] == ""


def test_json_lines_are_exact() -> None:
    (line,) = json_part("topic", [found(b"=1+1")], NoSchemas()).splitlines()
    assert json.loads(line)["value"] == "=1+1"
