"""Files that can halt at any operation, and lose unsynced changes when power fails.

Any combination of the names that changed since the last sync of their directory may be lost, and
any content since the last sync of its file. This is harsher than most disks, on purpose.
"""

import os
import random

from .files_in_memory import MemoryFile, MemoryFiles


class Halt(BaseException):
    """The process was killed."""


class VolatileFile(MemoryFile):
    def __init__(self, files: "VolatileFiles", content: bytearray) -> None:
        super().__init__(content)
        self._files = files

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._files.operation()
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        self._files.operation()
        super().truncate(size)

    def sync(self) -> None:
        self._files.operation()
        self._files.synced[id(self.content)] = bytes(self.content)


class VolatileFiles(MemoryFiles):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.left: int | None = None
        self.synced: dict[int, bytes] = {}
        self._kept: list[bytearray] = []
        """Keeps contents alive, so that their ids stay unique."""
        self._durable: dict[str, bytearray] = {}
        self._pending: list[tuple[str, str | None, bytearray]] = []
        """Name, previous name (None if new, the same if removed), content."""

    def operation(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Halt
            self.left -= 1

    def halt_after(self, operations: int) -> None:
        self.left = operations

    def resume(self) -> None:
        self.left = None

    def sync_everything(self) -> None:
        self._pending = []
        self._durable = dict(self.contents)
        self.synced = {id(content): bytes(content) for content in self.contents.values()}

    def lose_power(self) -> None:
        names = dict(self._durable)
        for name, before, content in self._pending:
            if self._chance.random() < 0.5:
                continue
            if before == name:
                names.pop(name, None)
            else:
                if before is not None:
                    if names.get(before) is not content:
                        continue
                    del names[before]
                names[name] = content
        for content in {id(each): each for each in names.values()}.values():
            if self._chance.random() < 0.7:
                content[:] = self.synced.get(id(content), b"")
        self.contents = names
        self.sync_everything()

    def open(self, path: str, *, create: bool = False) -> VolatileFile:
        if path not in self.contents:
            if not create:
                raise FileNotFoundError(path)
            self.operation()
            content = bytearray()
            self._kept.append(content)
            self.contents[path] = content
            self._pending.append((path, None, content))
        return VolatileFile(self, self.contents[path])

    def rename(self, old: str, new: str) -> None:
        self.operation()
        super().rename(old, new)
        self._pending.append((new, old, self.contents[new]))

    def unlink(self, path: str) -> None:
        self.operation()
        content = self.contents.get(path, bytearray())
        super().unlink(path)
        self._pending.append((path, path, content))

    def sync_directory(self, path: str) -> None:
        self.operation()
        still = []
        for change in self._pending:
            name, before, content = change
            if os.path.dirname(name) != path:
                still.append(change)
            elif before == name:
                self._durable.pop(name, None)
            else:
                if before is not None:
                    self._durable.pop(before, None)
                self._durable[name] = content
        self._pending = still
