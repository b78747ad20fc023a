"""Parquet files in folders that appear whole: ``batch=N`` is the table's N-th commit.

Executors write aside; the commit is one rename, which fails if the folder is already there. So two
drivers that saw the same newest folder cannot both go on. Each folder tells in a file, hidden from
readers of the table by its name, what the table remembers. Needs a file system with rename: a
local one, or one that is mounted.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from riverrun.pipeline.errors import CommitConflict
from riverrun.pipeline.evolution import evolve
from riverrun.pipeline.files import WrittenFile
from riverrun.pipeline.offsets import Place, Progress, Stored, stored_from

PREFIX = "batch="
MEMORY = "_riverrun.json"
DIGITS = 10


class ParquetAttempt:
    def __init__(self, path: str) -> None:
        self._path = Path(path.removeprefix("file://")).absolute()
        self._path.mkdir(parents=True, exist_ok=True)
        self._aside = self._path / f"_aside-{uuid4()}"
        self._newest = _newest(self._path)
        self._memory: Mapping[str, object] = {}
        if self._newest is not None:
            self._memory = json.loads((self._folder_of(self._newest) / MEMORY).read_text())

    @property
    def schema(self) -> pa.Schema | None:
        text = self._memory.get("schema")
        if not isinstance(text, str):
            return None
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text)))

    @property
    def folder(self) -> str:
        return str(self._aside)

    def stored(self, sink: str, places: Iterable[Place]) -> Stored:
        sinks = self._memory.get("sinks", {})
        assert isinstance(sinks, dict)
        return stored_from(sinks[sink]) if sink in sinks else Stored()

    def commit(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        schema = evolve(self.schema, schema).schema
        sinks = self._memory.get("sinks", {})
        assert isinstance(sinks, dict)
        memory = {
            "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            "sinks": {**sinks, progress.sink: progress.described()},
        }
        self._aside.mkdir(exist_ok=True)
        listed = {file.path for file in files}
        for path in self._aside.iterdir():
            if path.name not in listed:
                path.unlink()  # of a task that failed and was tried again
        (self._aside / MEMORY).write_text(json.dumps(memory))
        _sync(self._aside)
        place = self._folder_of(0 if self._newest is None else self._newest + 1)
        try:
            self._aside.rename(place)
        except OSError as error:
            self.discard()
            raise CommitConflict(f"{place.name} was committed by somebody else") from error
        _sync_folder(self._path)

    def discard(self) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)

    def _folder_of(self, number: int) -> Path:
        return self._path / f"{PREFIX}{number:0{DIGITS}}"


def _newest(path: Path) -> int | None:
    numbers = [
        int(entry.name.removeprefix(PREFIX))
        for entry in path.iterdir()
        if entry.name.startswith(PREFIX) and entry.name.removeprefix(PREFIX).isdigit()
    ]
    return max(numbers, default=None)


def _sync(folder: Path) -> None:
    """On the disk before it is shown: a table that shows rows must still have them tomorrow."""
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
