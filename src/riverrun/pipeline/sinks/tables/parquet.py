"""Parquet files in folders that appear atomically: ``batch=N`` is the table's N-th commit.

Executors write to a temporary folder. The commit renames a folder with all complete files, which
fails if ``batch=N`` exists, so of two drivers that saw the same newest folder only one can commit.
Each folder contains the table's progress and schema in a file whose name hides it from readers.
The file system must support rename, so it must be local or mounted.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from riverrun.pipeline.errors import CommitConflict
from riverrun.pipeline.offsets import SourcePartition, StoredProgress, TableProgress, parse_progress
from riverrun.pipeline.sinks.tables.data_files import WrittenFile
from riverrun.pipeline.sinks.tables.schema_evolution import WIDENINGS, Promotions, evolve

PREFIX = "batch="
METADATA = "_riverrun.json"
DIGITS = 10
TEMPORARY = "_aside-"
COMPLETE = "_whole-"
LEFTOVER_SECONDS = 24 * 60 * 60.0
"""Temporary folders that are older than this belong to a driver that died."""


class ParquetAttempt:
    def __init__(self, path: str) -> None:
        self._path = Path(path.removeprefix("file://")).absolute()
        self._path.mkdir(parents=True, exist_ok=True)
        unique = uuid4()
        self._temporary = self._path / f"{TEMPORARY}{unique}"
        self._complete = self._path / f"{COMPLETE}{unique}"
        self._newest = _newest(self._path)
        self._metadata: Mapping[str, object] = {}
        if self._newest is not None:
            self._metadata = json.loads((self._folder_of(self._newest) / METADATA).read_text())

    @property
    def schema(self) -> pa.Schema | None:
        text = self._metadata.get("schema")
        if not isinstance(text, str):
            return None
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text)))

    @property
    def promotions(self) -> Promotions:
        return WIDENINGS

    @property
    def folder(self) -> str:
        return str(self._temporary)

    def stored_progress(self, sink: str, partitions: Iterable[SourcePartition]) -> StoredProgress:
        sinks = self._metadata.get("sinks", {})
        assert isinstance(sinks, dict)
        return parse_progress(sinks[sink]) if sink in sinks else StoredProgress()

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, progress: TableProgress
    ) -> None:
        schema = evolve(self.schema, schema).schema
        sinks = self._metadata.get("sinks", {})
        assert isinstance(sinks, dict)
        metadata = {
            "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            "sinks": {**sinks, progress.sink: progress.to_json()},
        }
        # Only listed files, in a folder that no task writes to: an abandoned task may still write
        # to the temporary one.
        self._complete.mkdir()
        for file in files:
            (self._temporary / file.path).rename(self._complete / file.path)
        (self._complete / METADATA).write_text(json.dumps(metadata))
        _sync(self._complete)
        target = self._folder_of(0 if self._newest is None else self._newest + 1)
        try:
            self._complete.rename(target)
        except OSError as error:
            raise CommitConflict(f"another writer committed {target.name}") from error
        _sync_folder(self._path)

    def close(self) -> None:
        for folder in (self._temporary, self._complete):
            shutil.rmtree(folder, ignore_errors=True)

    def remove_leftovers(self, now: float) -> None:
        for entry in self._path.iterdir():
            if (
                entry.name.startswith((TEMPORARY, COMPLETE))
                and now - _changed_at(entry) > LEFTOVER_SECONDS
            ):
                shutil.rmtree(entry, ignore_errors=True)

    def _folder_of(self, number: int) -> Path:
        return self._path / f"{PREFIX}{number:0{DIGITS}}"


def _newest(path: Path) -> int | None:
    numbers = [
        int(entry.name.removeprefix(PREFIX))
        for entry in path.iterdir()
        if entry.name.startswith(PREFIX) and entry.name.removeprefix(PREFIX).isdigit()
    ]
    return max(numbers, default=None)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf  # another driver removed it


def _sync(folder: Path) -> None:
    """Flush all files before the rename, so that committed rows survive a power loss."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
