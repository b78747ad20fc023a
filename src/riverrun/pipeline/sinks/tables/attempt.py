"""Tables that remember in their own commits which records they have got.

``open_table`` gives an attempt: one look at the table, and at most one commit on top of exactly
what was seen. Whoever commits in between makes the attempt fail with ``CommitConflict``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from riverrun.pipeline.offsets import Place, Progress, Stored
from riverrun.pipeline.sinks.tables.data_files import WrittenFile
from riverrun.pipeline.sinks.tables.schema_evolution import Promotions


class Attempt(Protocol):
    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the table; None if there is no table yet."""

    @property
    def promotions(self) -> Promotions:
        """The types that a column of the table can be widened to."""

    @property
    def folder(self) -> str:
        """Where executors write their files. CannotContinue if it cannot be appended to."""

    def stored(self, sink: str, places: Iterable[Place]) -> Stored:
        """What the table remembers of these partitions."""

    def commit(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        """All files and the progress, or CommitConflict and nothing."""

    def discard(self) -> None:
        """Drop what was written and is in no commit, and let go of the table. Whoever opened the
        table calls it at the end, whatever came of it.
        """

    def tidy(self, now: float) -> None:
        """Remove what attempts left behind long ago whose drivers died; ``now`` in seconds since
        1970.
        """


def open_table(
    kind: str, path: str, *, name: str, options: Mapping[str, str] | None = None
) -> Attempt:
    """A fresh look at a table; modules are loaded as needed, for each brings a large library."""
    match kind:
        case "delta":
            from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

            return DeltaAttempt(path)
        case "iceberg":
            from riverrun.pipeline.sinks.tables.iceberg import IcebergAttempt

            return IcebergAttempt(path, name=name, options=options or {})
        case "parquet":
            from riverrun.pipeline.sinks.tables.parquet import ParquetAttempt

            return ParquetAttempt(path)
        case _:
            raise ValueError(f"unknown format {kind}")
