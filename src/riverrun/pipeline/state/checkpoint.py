"""Spark's checkpoint of one query, as far as a pipeline reads it.

The start offsets of the query, and the rows that it has written to a topic, are stored inside the
checkpoint's folder. They are therefore lost, copied and restored together with Spark's offsets.
"""

from __future__ import annotations

import json

from riverrun.pipeline.offsets import read_offset_log
from riverrun.pipeline.state.start_offsets import StartOffsets
from riverrun.pipeline.state.versioned_file import TextFiles, VersionedText

START_OFFSETS = "riverrun"
ROW_TOTALS = "riverrun-rows"
ROW_TOTALS_KEPT = 2
NEXT = ".next"


class QueryCheckpoint:
    def __init__(self, files: TextFiles, path: str) -> None:
        self._files = files
        self.path = path

    def has_batches(self) -> bool:
        """Whether a batch was started.

        Spark creates empty folders long before. A query that failed in between has no offsets.
        """
        return any(name.isdigit() for name in self._files.names_in(f"{self.path}/offsets"))

    def query_id(self) -> str:
        """The id that Spark gave to the query. It is created and lost with the checkpoint."""
        return str(json.loads(self._files.read_text(f"{self.path}/metadata"))["id"])

    def offset_log(self, batch: int) -> str:
        """The offsets that Spark logged before it started a batch. They never change."""
        return self._files.read_text(f"{self.path}/offsets/{batch}")

    def committed_offsets(self) -> dict[str, dict[int, int]]:
        """The end offsets of the last completed batch."""
        names = self._files.names_in(f"{self.path}/commits")
        last = max((int(name) for name in names if name.isdigit()), default=None)
        return {} if last is None else read_offset_log(self.offset_log(last))

    def start_offsets(self) -> StartOffsets | None:
        """None for a query that never started, or started before start offsets were stored."""
        text = self._start_offsets_in(self.path).load()
        return None if text is None else StartOffsets.from_json(text)

    def save_start_offsets(self, start: StartOffsets) -> None:
        self._start_offsets_in(self.path).update(lambda _: start.to_json())

    def row_total(self, batches: int | None = None) -> int:
        """The rows that a query has written to a topic, in all batches or in the first ones."""
        known = [count for count in self._totals() if batches is None or count <= batches]
        return int(self._files.read_text(f"{self._rows_folder}/{known[-1]}")) if known else 0

    def save_row_total(self, batches: int, total: int) -> None:
        """Store the total after this many batches. A repeated batch replaces its own total."""
        self._files.remove(f"{self._rows_folder}/{batches}")
        self._files.write_new(f"{self._rows_folder}/{batches}", str(total))
        for old in self._totals()[:-ROW_TOTALS_KEPT]:
            self._files.remove(f"{self._rows_folder}/{old}")

    def restart_from(self, start: StartOffsets) -> None:
        """Replace the checkpoint by an empty one with these start offsets.

        The old checkpoint is renamed, so that a user can inspect it. Only it holds the positions
        in the other topics, so the new one is written completely before the rename.
        """
        following = QueryCheckpoint(self._files, f"{self.path}{NEXT}")
        following.save_start_offsets(start)
        following.save_row_total(0, self.row_total())
        number = 1
        while self._files.exists(f"{self.path}.old-{number}"):
            number += 1
        self._files.rename(self.path, f"{self.path}.old-{number}")
        self.finish_restart()

    def finish_restart(self) -> None:
        """Complete a ``restart_from`` that was interrupted between its two renames."""
        following = f"{self.path}{NEXT}"
        if self._files.exists(following) and not self._files.exists(self.path):
            self._files.rename(following, self.path)

    @property
    def _rows_folder(self) -> str:
        return f"{self.path}/{ROW_TOTALS}"

    def _totals(self) -> list[int]:
        names = self._files.names_in(self._rows_folder)
        return sorted(int(name) for name in names if name.isdigit())

    def _start_offsets_in(self, folder: str) -> VersionedText:
        return VersionedText(self._files, f"{folder}/{START_OFFSETS}")
