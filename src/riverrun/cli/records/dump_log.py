"""``riverrun dump-log``: prints and checks the files of a data directory.

Reads segments (``.log``, also ``.checkpoint`` files of the metadata), indexes, producer snapshots
and checkpoints by their formats alone, without a broker. It verifies every CRC and compares every
index entry with its log.
"""

from __future__ import annotations

import contextlib
import json as json_format
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from crc32c import crc32c

from riverrun.cli.support.options import FAILED, NOT_FOUND, fail
from riverrun.ports.files import File, Files, OsFiles, read_whole
from riverrun.records.batch import (
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    crc_matches,
    read_header,
)
from riverrun.records.compression import Compression
from riverrun.records.record import ControlType, Record, read_records

Value = int | str | bool | None | list[tuple[str, str | None]]
Row = dict[str, Value]
"""One line of output. ``kind`` is its subject, ``problem`` what is wrong with it."""

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_CRC_FROM = 6
_BATCH_BYTES_MAX = 1 << 30
_TEXT_MAX = 200
_SUFFIXES_OF_OTHERS = (".deleted", ".cleaned", ".swap")


def register(app: typer.Typer) -> None:
    app.command("dump-log")(dump_log)


command = register


def dump_log(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Files of a data directory, or a partition's directory."
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Show the records, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Print and check segments, indexes, snapshots, checkpoints.

    Exits with 1 if a file is damaged or a named file has an unknown type, and with 4 if one does
    not exist.

    \b
    riverrun dump-log data/node-1/events-0
    riverrun dump-log --deep --json data/node-1/events-0/00000000000000000000.log | jq .
    """
    missing = [path for path in paths if not os.path.lexists(path)]
    problems = dump([path for path in paths if path not in missing], deep=deep, json=json)
    if missing:
        fail(f"there is no file {', '.join(missing)}", NOT_FOUND)
    if problems:
        raise typer.Exit(FAILED)


def dump(
    paths: Iterable[str], *, deep: bool, json: bool, files: Files | None = None,
    write: Callable[[str], None] = print,
) -> int:  # fmt: skip
    """Print the files' content; returns the number of problems."""
    files = files or OsFiles()
    problems = 0
    named = [os.path.abspath(path) for path in paths]
    for path in _expand(files, named):
        if not json:
            write(f"{path}:")
        try:
            for row in _rows(files, path, deep):
                # A directory may have files of other programs, but a named file is meant.
                problems += "problem" in row or ("note" in row and path in named)
                if json:
                    write(json_format.dumps({"file": path, **row}, ensure_ascii=False))
                else:
                    write("  " + _as_text(row))
        except OSError as error:
            problems += 1
            row = {"kind": "file", "problem": error.strerror or str(error)}
            write(json_format.dumps({"file": path, **row}) if json else "  " + _as_text(row))
    return problems


def _expand(files: Files, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if files.is_directory(path):
            inside = [os.path.join(path, name) for name in files.list_directory(path)]
            yield from (file for file in inside if not files.is_directory(file))
        else:
            yield path


def _rows(files: Files, path: str, deep: bool) -> Iterator[Row]:
    name = os.path.basename(path)
    for suffix in _SUFFIXES_OF_OTHERS:
        name = name.removesuffix(suffix)
    reader = _READERS.get(os.path.splitext(name)[1])
    if name in _CHECKPOINTS:
        yield from _read_checkpoint(files, path)
    elif name.endswith((".log", ".checkpoint")):
        yield from _read_segment(files, path, deep)
    elif reader is not None:
        yield from reader(files, path)
    elif name in ("partition.metadata", "meta.properties", "quorum-state"):
        yield {"kind": "text", "text": read_whole(files, path).decode("utf-8", "replace").strip()}
    else:
        yield {"kind": "file", "bytes": files.size(path), "note": "unknown file type"}


def _read_segment(files: Files, path: str, deep: bool) -> Iterator[Row]:
    base_text = os.path.basename(path).split(".")[0].split("-")[0]
    expected = int(base_text) if base_text.isdigit() and path.endswith(".log") else 0
    count = records = 0
    with contextlib.closing(files.open(path)) as file:
        size = file.size()
        position = 0
        while position < size:
            header = _header_at(file, position, size)
            if header is None:
                problem = f"no whole batch at {position}, {size - position} bytes are left"
                yield {"kind": "end", "position": position, "problem": problem}
                return
            batch = file.read_at(position, header.size)
            row = _batch_row(header, position)
            if not crc_matches(batch, 0, header.size):
                row["problem"] = "the CRC does not match"
            elif header.base_offset < expected:
                row["problem"] = f"offsets go back from {expected}"
            yield row
            if (deep or header.is_control) and "problem" not in row:
                yield from _record_rows(header, batch)
            expected = header.next_offset
            position += header.size
            count += 1
            records += header.count
    yield {"kind": "total", "batches": count, "records": records, "bytes": size}


def _header_at(file: File, position: int, size: int) -> BatchHeader | None:
    head = file.read_at(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = read_header(head)
    if header.magic != MAGIC or header.length < LENGTH_MIN or header.size > size - position:
        return None
    return header if header.size <= _BATCH_BYTES_MAX else None


def _batch_row(header: BatchHeader, position: int) -> Row:
    codec = header.compression
    row: Row = {
        "kind": "batch",
        "offsets": f"{header.base_offset}..{header.last_offset}",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "position": position,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "compression": Compression(codec).name.lower() if codec <= Compression.ZSTD else codec,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.has_log_append_time else "CreateTime",
        "crc": header.crc,
    }
    if header.producer_id >= 0:
        row["producer_id"] = header.producer_id
        row["producer_epoch"] = header.producer_epoch
        row["base_sequence"] = header.base_sequence
        row["last_sequence"] = header.last_sequence
    if header.is_transactional:
        row["transactional"] = True
    if header.is_control:
        row["control"] = True
    if header.delete_horizon is not None:
        row["delete_horizon"] = header.delete_horizon
    return row


def _record_rows(header: BatchHeader, batch: bytes) -> Iterator[Row]:
    try:
        records = read_records(batch)
    except CorruptBatch as error:
        yield {"kind": "record", "problem": str(error)}
        return
    for record in records:
        yield _control_row(record) if header.is_control else _record_row(record)


def _record_row(record: Record) -> Row:
    row: Row = {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _bytes_as_text(record.key),
        "value": _bytes_as_text(record.value),
    }
    if record.headers:
        row["headers"] = [(name, _bytes_as_text(value)) for name, value in record.headers]
    return row


def _control_row(record: Record) -> Row:
    control = ControlType.of(record.key)
    row: Row = {
        "kind": "record",
        "offset": record.offset,
        "control_type": "unknown" if control is None else control.name,
    }
    value = record.value or b""
    if control in (ControlType.ABORT, ControlType.COMMIT) and len(value) >= 6:
        row["coordinator_epoch"] = int.from_bytes(value[2:6], "big", signed=True)
    else:
        row["value"] = _bytes_as_text(record.value)
    return row


def _bytes_as_text(data: bytes | None) -> str | None:
    """Text if it is UTF-8, otherwise hexadecimal digits."""
    if data is None:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable():
            return text
    return f"0x{data.hex()}"


def _read_index(files: Files, path: str) -> Iterator[Row]:
    base, entries, tail = _entries(files, path, _OFFSET_ENTRY)
    with _log_beside(files, path) as (log, size):
        previous = (-1, -1)
        for relative, position in entries:
            row: Row = {"kind": "index", "offset": base + relative, "position": position}
            if relative <= previous[0] or position <= previous[1]:
                row["problem"] = "entries do not ascend"
            elif log is not None:
                header = _header_at(log, position, size)
                if header is None:
                    row["problem"] = f"the log has no batch at {position}"
                elif header.last_offset != base + relative:
                    row["problem"] = f"the batch there ends at {header.last_offset}"
            previous = relative, position
            yield row
    yield from tail


def _read_times(files: Files, path: str) -> Iterator[Row]:
    base, entries, tail = _entries(files, path, _TIME_ENTRY)
    previous = (-2, -1)
    for timestamp, relative in entries:
        row: Row = {"kind": "timeindex", "timestamp": timestamp, "offset": base + relative}
        if timestamp <= previous[0] or relative < previous[1]:
            row["problem"] = "entries do not ascend"
        previous = timestamp, relative
        yield row
    yield from tail


def _read_transactions(files: Files, path: str) -> Iterator[Row]:
    _, entries, tail = _entries(files, path, _TRANSACTION_ENTRY)
    for version, producer_id, first, last, stable in entries:
        row: Row = {
            "kind": "aborted",
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }
        if version != 0:
            row["problem"] = f"version {version} is not known"
        yield row
    yield from tail


def _entries(
    files: Files, path: str, entry: struct.Struct
) -> tuple[int, Iterator[tuple[int, ...]], list[Row]]:
    """Base offset, entries, and the problem with trailing bytes."""
    data = read_whole(files, path)
    rest = len(data) % entry.size
    base_text = os.path.basename(path)[:20]
    tail: list[Row] = []
    if rest:
        tail.append({"kind": "end", "problem": f"{rest} trailing bytes are not an entry"})
    whole = data[: len(data) - rest]
    return int(base_text) if base_text.isdigit() else 0, entry.iter_unpack(whole), tail


@contextlib.contextmanager
def _log_beside(files: Files, path: str) -> Iterator[tuple[File | None, int]]:
    """The log of an index, if it exists."""
    log_path = path.replace(".index", ".log")
    if not files.exists(log_path):
        yield None, 0
        return
    with contextlib.closing(files.open(log_path)) as file:
        yield file, file.size()


def _read_snapshot(files: Files, path: str) -> Iterator[Row]:
    data = read_whole(files, path)
    if len(data) < _SNAPSHOT_HEAD.size:
        yield {"kind": "end", "problem": f"{len(data)} bytes are no snapshot"}
        return
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    row: Row = {"kind": "snapshot", "version": version, "producers": count}
    body = data[_SNAPSHOT_HEAD.size :]
    if crc32c(data[_SNAPSHOT_CRC_FROM:]) != crc:
        row["problem"] = "the CRC does not match"
    elif len(body) != count * _SNAPSHOT_ENTRY.size:
        row["problem"] = f"{len(body)} bytes do not hold {count} producers"
    yield row
    if "problem" in row:
        return
    names = (
        "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta",
        "last_timestamp", "coordinator_epoch", "transaction_start",
    )  # fmt: skip
    for entry in _SNAPSHOT_ENTRY.iter_unpack(body):
        yield {"kind": "producer", **dict(zip(names, entry, strict=True))}


_CHECKPOINTS = {
    "leader-epoch-checkpoint": ("epoch", "start_offset"),
    "recovery-point-offset-checkpoint": ("topic", "partition", "offset"),
    "replication-offset-checkpoint": ("topic", "partition", "offset"),
    "log-start-offset-checkpoint": ("topic", "partition", "offset"),
    "cleaner-offset-checkpoint": ("topic", "partition", "offset"),
}


def _read_checkpoint(files: Files, path: str) -> Iterator[Row]:
    names = _CHECKPOINTS[os.path.basename(path)]
    lines = read_whole(files, path).decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0] != "0" or not lines[1].isdigit():
        yield {"kind": "end", "problem": "neither version 0 nor a number of entries"}
        return
    for line in lines[2:]:
        words = line.split(" ")
        if len(words) != len(names):
            yield {"kind": "entry", "text": line, "problem": f"not of the form {' '.join(names)}"}
            continue
        yield {"kind": "entry", **dict(zip(names, words, strict=True))}
    if len(lines) - 2 != int(lines[1]):
        yield {"kind": "end", "problem": f"{lines[1]} entries announced, {len(lines) - 2} found"}


_READERS: dict[str, Callable[[Files, str], Iterator[Row]]] = {
    ".index": _read_index,
    ".timeindex": _read_times,
    ".txnindex": _read_transactions,
    ".snapshot": _read_snapshot,
}


def _as_text(row: Row) -> str:
    words = [str(row["kind"])]
    hidden = ("kind", "base_offset", "last_offset") if row["kind"] == "batch" else ("kind",)
    for name, value in row.items():
        if name in hidden:
            continue
        if name == "problem":
            words.append(f"!! {value}")
        elif name.endswith(("timestamp", "horizon")) and isinstance(value, int):
            words.append(f"{name}={_time_as_text(value)}")
        else:
            words.append(f"{name}={_shortened(value)}")
    return " ".join(words)


def _shortened(value: Value) -> str:
    if isinstance(value, list):
        return "{" + ", ".join(f"{name}: {_shortened(text)}" for name, text in value) + "}"
    text = "null" if value is None else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… ({len(text)} characters)"


def _time_as_text(timestamp: int) -> str:
    if timestamp == NO_TIMESTAMP:
        return "none"
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp % 1000:03d}Z"
