"""One attempt to commit to a table: read its state, then commit on top of exactly that state.

A commit by another writer in between makes the attempt fail with ``CommitConflict``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from riverrun.pipeline.offsets import SourcePartition, StoredProgress, TableProgress
from riverrun.pipeline.sinks.tables.data_files import WrittenFile
from riverrun.pipeline.sinks.tables.delta import DeltaAttempt
from riverrun.pipeline.sinks.tables.parquet import ParquetAttempt
from riverrun.pipeline.sinks.tables.schema_evolution import Promotions


class TableAttempt(Protocol):
    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the table; None if the table does not exist."""

    @property
    def promotions(self) -> Promotions:
        """The wider types to which a column of the table can change."""

    @property
    def folder(self) -> str:
        """Where executors write their files. Raises CannotContinue if the table cannot be
        appended to.
        """

    def stored_progress(self, sink: str, partitions: Iterable[SourcePartition]) -> StoredProgress:
        """The stored progress of these partitions."""

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, progress: TableProgress
    ) -> None:
        """Add all files and store the progress atomically, or raise CommitConflict."""

    def close(self) -> None:
        """Drop files that are not committed, and release the table. Must always be called."""

    def remove_leftovers(self, now: float) -> None:
        """Remove old files of attempts whose drivers died. ``now`` is in seconds since 1970."""


def open_table(
    kind: str, path: str, *, name: str, options: Mapping[str, str] | None = None
) -> TableAttempt:
    """Read the current state of a table."""
    match kind:
        case "delta":
            return DeltaAttempt(path)
        case "iceberg":
            from riverrun.pipeline.sinks.tables.iceberg import IcebergAttempt

            return IcebergAttempt(path, name=name, options=options or {})
        case "parquet":
            return ParquetAttempt(path)
        case _:
            raise ValueError(f"unknown format {kind}")
