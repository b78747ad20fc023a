"""Iceberg tables by pyiceberg with a catalog in SQL: offsets are properties of the table.

Properties, for snapshots expire; set in the transaction that adds the files. pyiceberg tries a
commit again on top of what others did, which would accept a driver that saw an old table, so that
is switched off. Append only, and without compaction: pyiceberg has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from riverrun.pipeline.errors import CommitConflict
from riverrun.pipeline.offsets import Place, Progress, Stored, stored_from
from riverrun.pipeline.sinks.tables.data_files import WrittenFile
from riverrun.pipeline.sinks.tables.schema_evolution import Promotions, evolve, plain_schema

NAMESPACE = "riverrun"
PROMOTIONS: Promotions = MappingProxyType(
    {
        "int8": ("int16", "int32", "int64"),
        "int16": ("int32", "int64"),
        "int32": ("int64",),
        "float": ("double",),
    }
)
"""Those of Iceberg's specification; it has no way from whole numbers to others."""
NO_RETRY = {"commit.retry.num-retries": "0"}


class IcebergAttempt:
    """``path`` is the warehouse; the catalog lies in it unless ``catalog`` says where."""

    def __init__(self, path: str, *, name: str, options: Mapping[str, str]) -> None:
        self._catalog = open_catalog(path, options.get("catalog"))
        self._name = full_name(name)
        self._table: Table | None
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None
        self._folder = f"{_url(path)}/{self._name.replace('.', '/')}/data"

    @property
    def schema(self) -> pa.Schema | None:
        return None if self._table is None else plain_schema(self._table.schema().as_arrow())

    @property
    def promotions(self) -> Promotions:
        return PROMOTIONS

    @property
    def folder(self) -> str:
        return self._folder.removeprefix("file://")

    def stored(self, sink: str, places: Iterable[Place]) -> Stored:
        text = None if self._table is None else self._table.properties.get(_property(sink))
        return Stored() if text is None else stored_from(json.loads(text))

    def commit(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        if self._table is None:
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            try:
                self._table = self._catalog.create_table(
                    self._name, schema=schema, properties=NO_RETRY
                )
            except TableAlreadyExistsError as error:
                raise CommitConflict("the table was made by somebody else") from error
        change = evolve(self.schema, schema, PROMOTIONS)
        properties = {_property(progress.sink): json.dumps(progress.described()), **NO_RETRY}
        try:
            with self._table.transaction() as transaction:
                if change.added or change.widened:
                    with transaction.update_schema() as update:
                        update.union_by_name(change.schema)
                if files:
                    paths = [f"{self._folder}/{file.path}" for file in files]
                    transaction.add_files(paths, check_duplicate_files=False)
                transaction.set_properties(properties)
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error

    def discard(self) -> None:
        """Files in no snapshot are nobody's; they cost room, not rows. The catalog's connections
        are ours, and would pile up.
        """
        self._catalog.close()

    def tidy(self, now: float) -> None:
        """pyiceberg cannot tell which files are nobody's."""


def open_catalog(path: str, uri: str | None) -> Catalog:
    if uri is None:
        folder = Path(path.removeprefix("file://")).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{folder}/catalog.db"
    return SqlCatalog("riverrun", uri=uri, warehouse=_url(path))


def full_name(name: str) -> str:
    return name if "." in name else f"{NAMESPACE}.{name.replace('-', '_')}"


def _url(path: str) -> str:
    return path if "://" in path else f"file://{Path(path).absolute()}"


def _property(sink: str) -> str:
    return f"riverrun.progress.{sink}"
