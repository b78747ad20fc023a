"""Delta tables by deltalake: offsets are application transactions of the commit.

A commit through a handle that is not the newest is refused if anybody committed one of our
transactions since, and accepted if the handle is new, whatever the number says. So the numbers are
checked on the very handle that commits. Changes of columns are commits of their own, before the
rows, and move the handle on: the numbers are checked again behind them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from riverrun.pipeline.errors import CannotContinue, CommitConflict
from riverrun.pipeline.offsets import Place, Progress, Stored
from riverrun.pipeline.sinks.tables.data_files import WrittenFile, location
from riverrun.pipeline.sinks.tables.schema_evolution import (
    WIDER,
    Evolution,
    Promotions,
    evolve,
    plain_schema,
)


class DeltaAttempt:
    def __init__(self, path: str) -> None:
        self._path = path = location(path)
        self._seen: Stored | None = None
        self._places: tuple[Place, ...] = ()
        self._table: DeltaTable | None
        try:
            self._table = DeltaTable(path)
        except TableNotFoundError:
            self._table = None

    @property
    def schema(self) -> pa.Schema | None:
        return None if self._table is None else schema_of(self._table)

    @property
    def promotions(self) -> Promotions:
        return WIDER

    @property
    def folder(self) -> str:
        columns = [] if self._table is None else self._table.metadata().partition_columns
        if columns:
            raise CannotContinue(
                f"the table at {self._path} is divided by {', '.join(columns)}, and files of a "
                "pipeline are not. Choose another path, or make the table anew without partitions"
            )
        return self._path

    def stored(self, sink: str, places: Iterable[Place]) -> Stored:
        self._places = tuple(sorted(places))
        if self._table is None:
            self._seen = Stored()
        else:
            self._seen = _stored(self._table, sink, self._places)
        return self._seen

    def commit(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        table = self._prepared(schema, progress)
        try:
            table.create_write_transaction(
                [_add(file) for file in files],
                "append",
                table.schema(),
                commit_properties=_properties(progress, self._seen),
            )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error

    def merge(
        self,
        rows: pa.Table,
        progress: Progress,
        *,
        keys: Sequence[str],
        order: str | None,
        delete: str | None,
    ) -> None:
        """Bring the newest row of each key into the table, in one commit with the progress.

        ``order`` names a column whose larger value wins; ``delete`` one that says whether the row
        removes its key, and is not stored.
        """
        left_out = [] if delete is None else [delete]
        table = self._prepared(plain_schema(rows.drop_columns(left_out).schema), progress)
        version = table.version()
        newer = None
        if order is not None:
            # A row without an order would never be replaced: nothing is larger than null.
            newer = f"(target.`{order}` IS NULL OR source.`{order}` > target.`{order}`)"
        merger = table.merge(
            rows,
            " AND ".join(f"source.`{key}` = target.`{key}`" for key in keys),
            source_alias="source",
            target_alias="target",
            commit_properties=_properties(progress, self._seen),
        )
        if delete is None:
            merger = merger.when_matched_update_all(newer).when_not_matched_insert_all()
        else:
            gone = f"coalesce(source.`{delete}`, false)"
            merger = (
                merger.when_matched_delete(gone if newer is None else f"{gone} AND {newer}")
                .when_matched_update_all(newer, except_cols=left_out)
                .when_not_matched_insert_all(f"NOT {gone}", except_cols=left_out)
            )
        try:
            if rows.num_rows:
                merger.execute()
            if table.version() == version:
                # A merge that changes nothing commits nothing, the progress included.
                table.create_write_transaction(
                    [],
                    "append",
                    table.schema(),
                    commit_properties=_properties(progress, self._seen),
                )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error

    def discard(self) -> None:
        """Files in no commit cannot be told from those of a commit whose outcome is not known;
        the vacuum that follows a compaction looks at their age.
        """

    def tidy(self, now: float) -> None:
        """As ``discard``."""

    def compact(self) -> int:
        """Small files into large ones, and old files off the disk; the number of files that are
        no longer read. No row changes, so a conflict with another writer only means that the next
        time will do.
        """
        assert self._table is not None, "there is something to compact"
        try:
            told = self._table.optimize.compact()
            # Of what lies longer than the table's own setting, a week unless it says otherwise.
            self._table.vacuum(dry_run=False)
        except (CommitFailedError, DeltaError):
            return 0
        return int(told["numFilesRemoved"])

    def _prepared(self, schema: pa.Schema, progress: Progress) -> DeltaTable:
        """The table with columns for what comes."""
        assert self._seen is not None, "what the table has is looked at before a commit"
        if self._table is None:
            try:
                self._table = DeltaTable.create(self._path, schema=Schema.from_arrow(schema))
            except DeltaError as error:
                raise CommitConflict(f"the table was made by somebody else: {error}") from error
        change = evolve(schema_of(self._table), schema)
        if change.widened:
            self._widen(self._table, change, progress)
        elif change.added:
            fields = [change.schema.field(name) for name in change.added]
            self._table.alter.add_columns(list(Schema.from_arrow(pa.schema(fields)).fields))
        if change.widened or change.added:
            now = _stored(self._table, progress.sink, self._places)
            if now != self._seen:
                raise CommitConflict("the table has gone on while its columns were changed")
        return self._table

    def _widen(self, table: DeltaTable, change: Evolution, progress: Progress) -> None:
        """deltalake cannot widen a type in place, so the table is written anew, batch by batch.

        The commit repeats the offsets that the table has: it fails if they have moved.
        """
        assert self._seen is not None
        repeated = Progress(
            sink=progress.sink,
            offsets=self._seen.offsets,
            query=self._seen.query,
            batch=self._seen.batch,
            digest=self._seen.digest,
        )
        from riverrun.pipeline.sinks.tables.data_files import conform

        scanned = table.to_pyarrow_dataset().to_batches()
        wide = pa.RecordBatchReader.from_batches(
            change.schema, (conform(batch, change.schema) for batch in scanned)
        )
        try:
            write_deltalake(
                table,
                wide,
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=_properties(repeated, None),
            )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        table.update_incremental()


def schema_of(table: DeltaTable) -> pa.Schema:
    return plain_schema(pa.schema(table.schema().to_arrow()))


def _add(file: WrittenFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _properties(progress: Progress, seen: Stored | None) -> CommitProperties:
    """Only what moves: a commit with a thousand partitions must not write them all each time."""
    known = {} if seen is None else seen.offsets
    moved = {place: end for place, end in progress.offsets.items() if known.get(place) != end}
    rows = [Transaction(_name(progress.sink, place), end) for place, end in sorted(moved.items())]
    told: dict[str, int | None] = {
        # Transactions cannot be listed, so one has a name that needs no partition to be known.
        "begun": 1 if seen is not None and not seen.is_begun else None,
        "query": progress.query,
        "batch": progress.batch,
        "digest": progress.digest,
    }
    for name, number in told.items():
        if number is not None:
            rows.append(Transaction(f"riverrun/{progress.sink}/{name}", number))
    return CommitProperties(app_transactions=rows, max_commit_retries=None)


def _stored(table: DeltaTable, sink: str, places: Iterable[Place]) -> Stored:
    found = {place: table.transaction_version(_name(sink, place)) for place in sorted(places)}
    return Stored(
        offsets={place: offset for place, offset in found.items() if offset is not None},
        query=table.transaction_version(f"riverrun/{sink}/query"),
        batch=table.transaction_version(f"riverrun/{sink}/batch"),
        digest=table.transaction_version(f"riverrun/{sink}/digest"),
        is_begun=table.transaction_version(f"riverrun/{sink}/begun") is not None,
    )


def _name(sink: str, place: Place) -> str:
    return f"riverrun/{sink}/{place}"
