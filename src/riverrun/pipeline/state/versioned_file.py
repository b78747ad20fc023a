"""Small texts that outlive a driver: each change is a new numbered file, and the newest counts.

A new name can be taken by one writer only, so of two that change a text at once the other one looks
again. Where the files lie is a matter of ``Files``: beside a checkpoint, which may be anywhere that
Spark can look, or in a folder of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from uuid import uuid4

CHANGES_MAX = 100
"""How often a change is tried again when others were faster."""


class Files(Protocol):
    def exists(self, path: str) -> bool: ...

    def names_in(self, path: str) -> list[str]:
        """What lies in a folder; nothing in one that is not there."""

    def read_text(self, path: str) -> str: ...

    def write_new(self, path: str, text: str) -> None:
        """Whole or not at all; FileExistsError when the name is taken."""

    def rename(self, path: str, other: str) -> None: ...


class LocalFiles:
    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names_in(self, path: str) -> list[str]:
        return sorted(entry.name for entry in Path(path).iterdir()) if self.exists(path) else []

    def read_text(self, path: str) -> str:
        return Path(path).read_text()

    def write_new(self, path: str, text: str) -> None:
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f".{uuid4()}")
        with aside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, place)  # a rename would replace what another has written
        finally:
            aside.unlink()

    def rename(self, path: str, other: str) -> None:
        Path(path).rename(other)


class Kept:
    """One text, in a folder of its own."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def load(self) -> str | None:
        newest = self._newest()
        return None if newest is None else self._read(newest)

    def change(self, changed: Callable[[str | None], str]) -> str:
        """What the text is now: ``changed`` gets what it was, and is asked again when somebody
        else was faster.
        """
        for _ in range(CHANGES_MAX):
            newest = self._newest()
            was = None if newest is None else self._read(newest)
            text = changed(was)
            if text == was:
                return text
            try:
                number = 0 if newest is None else newest + 1
                self._files.write_new(f"{self._folder}/{number}.json", text)
            except FileExistsError:
                continue
            return text
        raise OSError(f"{self._folder} changes all the time")

    def _newest(self) -> int | None:
        names = (name.removesuffix(".json") for name in self._files.names_in(self._folder))
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _read(self, number: int) -> str:
        return self._files.read_text(f"{self._folder}/{number}.json")
