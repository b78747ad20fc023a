"""Spark's checkpoint of one query, as far as a pipeline looks into it, and what lies with it.

What the query began with is kept in the checkpoint's own folder: so it is lost, copied and brought
back together with the offsets that follow it.
"""

from __future__ import annotations

from riverrun.pipeline.offsets import read_offset_log
from riverrun.pipeline.state.start_offsets import Beginning
from riverrun.pipeline.state.versioned_file import Files, Kept

BEGINNING = "riverrun"
NEXT = ".next"


class Checkpoint:
    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path

    def is_there(self) -> bool:
        """Whether a batch was begun: Spark makes empty folders long before, and a query that
        failed in between knows no offsets.
        """
        return any(name.isdigit() for name in self._files.names_in(f"{self.path}/offsets"))

    def log_of(self, batch: int) -> str:
        """What Spark wrote down of a batch before it began; it never changes."""
        return self._files.read_text(f"{self.path}/offsets/{batch}")

    def finished(self) -> dict[str, dict[int, int]]:
        """The offsets up to which all batches are done."""
        names = self._files.names_in(f"{self.path}/commits")
        done = max((int(name) for name in names if name.isdigit()), default=None)
        return {} if done is None else read_offset_log(self.log_of(done))

    def beginning(self) -> Beginning | None:
        """None for a query that never began, or did so before beginnings were written down."""
        text = self._kept(self.path).load()
        return None if text is None else Beginning.parse(text)

    def begin(self, beginning: Beginning) -> None:
        self._kept(self.path).change(lambda _: beginning.in_text())

    def begin_anew(self, beginning: Beginning) -> None:
        """The checkpoint that was is renamed, not deleted, for a person may want to look at it.

        It alone may know where other topics were, so the new one is whole before it goes.
        """
        self._kept(f"{self.path}{NEXT}").change(lambda _: beginning.in_text())
        number = 1
        while self._files.exists(f"{self.path}.old-{number}"):
            number += 1
        self._files.rename(self.path, f"{self.path}.old-{number}")
        self.recover()

    def recover(self) -> None:
        """Finish a new beginning that was cut short between its two renames."""
        following = f"{self.path}{NEXT}"
        if self._files.exists(following) and not self._files.exists(self.path):
            self._files.rename(following, self.path)

    def _kept(self, folder: str) -> Kept:
        return Kept(self._files, f"{folder}/{BEGINNING}")
