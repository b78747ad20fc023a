"""Iceberg tables with pyiceberg and a SQL catalog: offsets are a property of the table.

A property, because snapshots expire. It is set in the transaction that adds the files. pyiceberg
retries a commit on top of concurrent commits, which would accept a driver with a stale view, so
retries are disabled. Tables are append-only and not compacted, because pyiceberg cannot compact.
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
from riverrun.pipeline.offsets import SourcePartition, StoredProgress, TableProgress, parse_progress
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
"""The promotions of Iceberg's specification. Integers cannot become floating-point numbers."""
NO_RETRY = {"commit.retry.num-retries": "0"}


class IcebergAttempt:
    """``path`` is the warehouse. It contains the catalog unless ``catalog`` names another one."""

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

    def stored_progress(self, sink: str, partitions: Iterable[SourcePartition]) -> StoredProgress:
        text = None if self._table is None else self._table.properties.get(_property(sink))
        return StoredProgress() if text is None else parse_progress(json.loads(text))

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, progress: TableProgress
    ) -> None:
        if self._table is None:
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            try:
                self._table = self._catalog.create_table(
                    self._name, schema=schema, properties=NO_RETRY
                )
            except TableAlreadyExistsError as error:
                raise CommitConflict("another writer created the table") from error
        change = evolve(self.schema, schema, PROMOTIONS)
        properties = {_property(progress.sink): json.dumps(progress.to_json()), **NO_RETRY}
        try:
            with self._table.transaction() as transaction:
                if change.added or change.widened:
                    with transaction.update_schema() as update:
                        update.union_by_name(change.schema)
                # Also without files: only a new snapshot conflicts with the commits of others.
                paths = [f"{self._folder}/{file.path}" for file in files]
                transaction.add_files(paths, check_duplicate_files=False)
                transaction.set_properties(properties)
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error

    def close(self) -> None:
        """Close the catalog's connections. Uncommitted files stay; they cost space only."""
        self._catalog.close()

    def remove_leftovers(self, now: float) -> None:
        """pyiceberg cannot find files that belong to no snapshot."""


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
