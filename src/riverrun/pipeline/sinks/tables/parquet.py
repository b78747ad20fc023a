"""Parquet files in folders that appear whole: ``batch=N`` is the table's N-th commit.

Executors write aside; the commit is one rename of all that the driver knows to be whole, which
fails if the folder is already there. So two drivers that saw the same newest folder cannot both go
on. Each folder tells in a file, hidden from
readers of the table by its name, what the table remembers. Needs a file system with rename: a
local one, or one that is mounted.
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
from riverrun.pipeline.offsets import Place, Progress, Stored, stored_from
from riverrun.pipeline.sinks.tables.data_files import WrittenFile
from riverrun.pipeline.sinks.tables.schema_evolution import WIDER, Promotions, evolve

PREFIX = "batch="
MEMORY = "_riverrun.json"
DIGITS = 10
ASIDE = "_aside-"
WHOLE = "_whole-"
LEFT_SECONDS = 24 * 60 * 60.0
"""Folders that nobody touched for so long were left by a driver that died."""


class ParquetAttempt:
    def __init__(self, path: str) -> None:
        self._path = Path(path.removeprefix("file://")).absolute()
        self._path.mkdir(parents=True, exist_ok=True)
        unique = uuid4()
        self._aside = self._path / f"{ASIDE}{unique}"
        self._whole = self._path / f"{WHOLE}{unique}"
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
    def promotions(self) -> Promotions:
        return WIDER

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
        # Only what is listed, in a folder that no task knows: one that was given up may still
        # write into the other.
        self._whole.mkdir()
        for file in files:
            (self._aside / file.path).rename(self._whole / file.path)
        (self._whole / MEMORY).write_text(json.dumps(memory))
        _sync(self._whole)
        place = self._folder_of(0 if self._newest is None else self._newest + 1)
        try:
            self._whole.rename(place)
        except OSError as error:
            raise CommitConflict(f"{place.name} was committed by somebody else") from error
        _sync_folder(self._path)

    def discard(self) -> None:
        for folder in (self._aside, self._whole):
            shutil.rmtree(folder, ignore_errors=True)

    def tidy(self, now: float) -> None:
        for entry in self._path.iterdir():
            if entry.name.startswith((ASIDE, WHOLE)) and now - _changed_at(entry) > LEFT_SECONDS:
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
        return math.inf  # another driver was faster


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
