"""Small texts with atomic updates: each update is a new numbered file, and the newest one counts.

Only one writer can create a name. A writer that loses the race reads the new text and tries again.
``TextFiles`` abstracts the place: a local folder, or any file system that Spark can reach.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from uuid import uuid4

UPDATES_MAX = 100
"""Attempts of one update while other writers are faster."""


class TextFiles(Protocol):
    def exists(self, path: str) -> bool: ...

    def names_in(self, path: str) -> list[str]:
        """Names in a folder; empty if the folder does not exist."""

    def read_text(self, path: str) -> str: ...

    def write_new(self, path: str, text: str) -> None:
        """Create a file atomically. Raises FileExistsError if the name exists."""

    def rename(self, path: str, other: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if it does not exist."""


class LocalFiles:
    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names_in(self, path: str) -> list[str]:
        return sorted(entry.name for entry in Path(path).iterdir()) if self.exists(path) else []

    def read_text(self, path: str) -> str:
        return Path(path).read_text()

    def write_new(self, path: str, text: str) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{uuid4()}")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)  # a rename would replace the file of another writer
        finally:
            temporary.unlink()

    def rename(self, path: str, other: str) -> None:
        Path(path).rename(other)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


class VersionedText:
    """One text, in a folder of its own."""

    def __init__(self, files: TextFiles, folder: str) -> None:
        self._files = files
        self._folder = folder

    def load(self) -> str | None:
        newest = self._newest()
        return None if newest is None else self._read(newest)

    def update(self, change: Callable[[str | None], str]) -> str:
        """Apply ``change`` to the current text and return the new one.

        ``change`` runs again if another writer was faster.
        """
        for _ in range(UPDATES_MAX):
            newest = self._newest()
            current = None if newest is None else self._read(newest)
            text = change(current)
            if text == current:
                return text
            try:
                number = 0 if newest is None else newest + 1
                self._files.write_new(f"{self._folder}/{number}.json", text)
            except FileExistsError:
                continue
            return text
        raise OSError(f"{self._folder}: lost {UPDATES_MAX} races against other writers")

    def _newest(self) -> int | None:
        names = (name.removesuffix(".json") for name in self._files.names_in(self._folder))
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _read(self, number: int) -> str:
        return self._files.read_text(f"{self._folder}/{number}.json")
