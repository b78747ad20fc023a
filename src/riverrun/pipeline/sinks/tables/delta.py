"""Delta tables with deltalake: offsets are application transactions of the commit.

deltalake refuses a commit through a stale handle if another commit has changed one of our
transactions. It accepts any number through a fresh handle. So the numbers are checked on the handle
that commits. Column changes are separate commits before the rows and refresh the handle, so the
numbers are checked again after them.
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
from riverrun.pipeline.offsets import SourcePartition, StoredProgress, TableProgress
from riverrun.pipeline.sinks.tables.data_files import WrittenFile, conform, location
from riverrun.pipeline.sinks.tables.schema_evolution import (
    WIDENINGS,
    Evolution,
    Promotions,
    evolve,
    plain_schema,
)


class DeltaAttempt:
    def __init__(self, path: str) -> None:
        self._path = path = location(path)
        self._seen: StoredProgress | None = None
        self._partitions: tuple[SourcePartition, ...] = ()
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
        return WIDENINGS

    @property
    def folder(self) -> str:
        columns = [] if self._table is None else self._table.metadata().partition_columns
        if columns:
            raise CannotContinue(
                f"the table at {self._path} is partitioned by {', '.join(columns)}, but a pipeline "
                "writes unpartitioned files. Choose another path, or recreate the table without "
                "partitions"
            )
        return self._path

    def stored_progress(self, sink: str, partitions: Iterable[SourcePartition]) -> StoredProgress:
        self._partitions = tuple(sorted(partitions))
        if self._table is None:
            self._seen = StoredProgress()
        else:
            self._seen = _stored(self._table, sink, self._partitions)
        return self._seen

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, progress: TableProgress
    ) -> None:
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
        progress: TableProgress,
        *,
        keys: Sequence[str],
        order: str | None,
        delete: str | None,
    ) -> None:
        """Merge the newest row of each key into the table, in one commit with the progress.

        The row with the larger value in the column ``order`` wins. A true value in the column
        ``delete``, which is not stored, removes the key.
        """
        left_out = [] if delete is None else [delete]
        table = self._prepared(plain_schema(rows.drop_columns(left_out).schema), progress)
        version = table.version()
        newer = None
        if order is not None:
            # Nothing is larger than null, so a stored row without an order would never be replaced.
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
            is_deleted = f"coalesce(source.`{delete}`, false)"
            merger = (
                merger.when_matched_delete(
                    is_deleted if newer is None else f"{is_deleted} AND {newer}"
                )
                .when_matched_update_all(newer, except_cols=left_out)
                .when_not_matched_insert_all(f"NOT {is_deleted}", except_cols=left_out)
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

    def close(self) -> None:
        """Keep uncommitted files: they look like those of a commit with an unknown outcome. The
        vacuum after a compaction removes them by age.
        """

    def remove_leftovers(self, now: float) -> None:
        """The vacuum after a compaction does it."""

    def compact(self) -> int:
        """Merge small files and vacuum old ones. Returns the number of replaced files.

        No row changes, so after a conflict with another writer the next compaction is enough.
        """
        assert self._table is not None, "a table with commits exists"
        try:
            metrics = self._table.optimize.compact()
            # Only files older than delta.deletedFileRetentionDuration, a week by default.
            self._table.vacuum(dry_run=False)
        except (CommitFailedError, DeltaError):
            return 0
        return int(metrics["numFilesRemoved"])

    def _prepared(self, schema: pa.Schema, progress: TableProgress) -> DeltaTable:
        """The table, created or extended with columns for this schema."""
        assert self._seen is not None, "the stored progress is read before a commit"
        if self._table is None:
            try:
                self._table = DeltaTable.create(self._path, schema=Schema.from_arrow(schema))
            except DeltaError as error:
                raise CommitConflict(f"another writer created the table: {error}") from error
        change = evolve(schema_of(self._table), schema)
        if change.widened:
            self._widen(self._table, change, progress)
        elif change.added:
            fields = [change.schema.field(name) for name in change.added]
            self._table.alter.add_columns(list(Schema.from_arrow(pa.schema(fields)).fields))
        if change.widened or change.added:
            now = _stored(self._table, progress.sink, self._partitions)
            if now != self._seen:
                raise CommitConflict("another writer committed while the columns changed")
        return self._table

    def _widen(self, table: DeltaTable, change: Evolution, progress: TableProgress) -> None:
        """Rewrite the table batch by batch, because deltalake cannot widen a type in place.

        The commit repeats the stored offsets, so it fails if another writer has advanced them.
        """
        assert self._seen is not None
        repeated = TableProgress(
            sink=progress.sink,
            offsets=self._seen.offsets,
            query=self._seen.query,
            batch=self._seen.batch,
            digest=self._seen.digest,
        )
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


def _properties(progress: TableProgress, seen: StoredProgress | None) -> CommitProperties:
    """Only changed offsets, because a sink may have thousands of partitions."""
    known = {} if seen is None else seen.offsets
    changed = {
        partition: end for partition, end in progress.offsets.items() if known.get(partition) != end
    }
    rows = [
        Transaction(_name(progress.sink, partition), end)
        for partition, end in sorted(changed.items())
    ]
    numbers: dict[str, int | None] = {
        # Transactions cannot be listed, so this one has a name without a partition.
        "begun": 1 if seen is not None and not seen.is_begun else None,
        "query": progress.query,
        "batch": progress.batch,
        "digest": progress.digest,
        "rows": progress.rows,
    }
    for name, number in numbers.items():
        if number is not None:
            rows.append(Transaction(f"riverrun/{progress.sink}/{name}", number))
    return CommitProperties(app_transactions=rows, max_commit_retries=None)


def _stored(table: DeltaTable, sink: str, partitions: Iterable[SourcePartition]) -> StoredProgress:
    found = {
        partition: table.transaction_version(_name(sink, partition))
        for partition in sorted(partitions)
    }
    return StoredProgress(
        offsets={at: offset for at, offset in found.items() if offset is not None},
        query=table.transaction_version(f"riverrun/{sink}/query"),
        batch=table.transaction_version(f"riverrun/{sink}/batch"),
        digest=table.transaction_version(f"riverrun/{sink}/digest"),
        rows=table.transaction_version(f"riverrun/{sink}/rows"),
        is_begun=table.transaction_version(f"riverrun/{sink}/begun") is not None,
    )


def _name(sink: str, partition: SourcePartition) -> str:
    return f"riverrun/{sink}/{partition}"
