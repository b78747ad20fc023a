"""Runs in executors: writes Arrow batches to Parquet files, which the driver commits.

A retried task writes files with other names. Those of the failed attempt are in no list, so no
table contains them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

FILE_BYTES_MAX = 256 * 1024 * 1024

LISTED = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64())])
"""The result of a task: one row for each file that it wrote."""
LISTED_DDL = "path string, bytes bigint, rows bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    path: str
    """Relative to the folder of the table."""
    bytes: int
    rows: int


def write_files(
    batches: Iterator[pa.RecordBatch],
    folder: str,
    schema: pa.Schema,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """Write all batches to as few files as the limit allows, and yield the list of files."""
    files, base = _opened(location(folder))
    written: list[dict[str, object]] = []
    writer: _FileWriter | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        writer = writer or _FileWriter(files, base, schema)
        writer.write(conform(batch, schema))
        if writer.bytes >= file_bytes_max:
            written.append(writer.close())
            writer = None
    if writer is not None:
        written.append(writer.close())
    if written:
        yield pa.RecordBatch.from_pylist(written, schema=LISTED)


def location(path: str) -> str:
    """A path in the form that libraries other than Spark expect."""
    if path.startswith("s3a://"):
        return f"s3://{path.removeprefix('s3a://')}"
    return path.removeprefix("file://")


def _opened(folder: str) -> tuple[fs.FileSystem, str]:
    if "://" in folder:
        system, base = fs.FileSystem.from_uri(folder)
        system.create_dir(base, recursive=True)
        return system, base
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    return fs.LocalFileSystem(), folder


class _FileWriter:
    def __init__(self, files: fs.FileSystem, base: str, schema: pa.Schema) -> None:
        self._name = f"part-{uuid4()}.parquet"
        self._rows = 0
        self._stream = files.open_output_stream(f"{base}/{self._name}")
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")

    @property
    def bytes(self) -> int:
        return int(self._stream.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def close(self) -> dict[str, object]:
        self._writer.close()
        size = self.bytes
        self._stream.close()
        return {"path": self._name, "bytes": size, "rows": self._rows}


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the table's columns. Missing columns are null, and types are widened."""
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(_cast(batch.column(index), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        there = {column.type.field(i).name: i for i in range(column.type.num_fields)}
        # flatten() also applies the nulls of the struct to its fields.
        parts = column.flatten()
        inner = [kind.field(i) for i in range(kind.num_fields)]
        arrays = [
            _cast(parts[there[f.name]], f.type)
            if f.name in there
            else pa.nulls(len(column), f.type)
            for f in inner
        ]
        return pa.StructArray.from_arrays(arrays, fields=inner, mask=column.is_null())
    return column.cast(kind)
