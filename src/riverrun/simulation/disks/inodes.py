"""Files and directories of a simulated disk, with changes that are not synced yet.

Each object has two states: the one that processes see (the page cache) and the durable one. It also
keeps the changes between them. A sync makes changes durable. A power loss keeps, loses or tears
them. ``disk`` and ``mount`` add permissions, delays and errors.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

SECTOR_BYTES = 512
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Write:
    number: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """The file was truncated to a size, or extended to it with zeros."""

    number: int
    size: int


Change = Write | Resize


class PowerLossEffect(Enum):
    """Effect of a power loss on the unsynced changes of a file."""

    LOST = "lost"
    KEPT = "kept"
    PREFIX = "prefix"
    CHAOS = "chaos"


POWER_LOSS_EFFECTS: Sequence[PowerLossEffect] = (
    PowerLossEffect.LOST,
    PowerLossEffect.KEPT,
    PowerLossEffect.PREFIX,
    PowerLossEffect.PREFIX,
    PowerLossEffect.CHAOS,
    PowerLossEffect.CHAOS,
)


class Inode:
    """The content of a file, independent of its names."""

    __slots__ = ("_changes", "_numbers", "cold_pages", "content", "durable", "modified_ms", "names")

    def __init__(self, modified_ms: int) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.modified_ms = modified_ms
        self.cold_pages: set[int] = set()
        self.names = 0
        self._changes: list[Change] = []
        self._numbers = 0

    # The page cache

    def write(self, position: int, data: bytes, modified_ms: int) -> None:
        self._numbers += 1
        self._changes.append(Write(self._numbers, position, data))
        _store(self.content, position, data)
        self.modified_ms = modified_ms

    def truncate(self, size: int, modified_ms: int) -> None:
        self._numbers += 1
        self._changes.append(Resize(self._numbers, size))
        _resize(self.content, size)
        self.modified_ms = modified_ms

    def is_cold(self, position: int, length: int) -> bool:
        if not self.cold_pages:
            return False
        pages = range(position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES + 1)
        return any(page in self.cold_pages for page in pages)

    def warm(self, position: int, length: int) -> None:
        if self.cold_pages:
            first, last = position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES
            self.cold_pages.difference_update(range(first, last + 1))

    def chill(self, position: int, length: int) -> None:
        """Let synced pages leave the cache."""
        if length > 0 and not self._changes:
            first, last = position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES
            self.cold_pages.update(range(first, last + 1))

    # Syncs

    def last_change(self) -> int:
        """The number of the last change that a sync starting now covers."""
        return self._numbers

    @property
    def is_dirty(self) -> bool:
        return bool(self._changes)

    def carry_over(self, last: int) -> None:
        """Make the changes up to ``last`` durable."""
        covered = [change for change in self._changes if change.number <= last]
        for change in covered:
            _apply(self.durable, change)
        del self._changes[: len(covered)]

    def fail_to_carry_over(self, last: int, rng: random.Random) -> None:
        """Fail a sync: pages become clean, whether they reached the disk or not.

        No later sync writes them again. Pages that the kernel drops read as before, or as zeros if
        they were never written.
        """
        covered = [change for change in self._changes if change.number <= last]
        del self._changes[: len(covered)]
        for change in covered:
            if rng.random() < 0.5:
                _apply(self.durable, change)
            elif isinstance(change, Write) and rng.random() < 0.5:
                end = change.position + len(change.data)
                old = bytes(self.durable[change.position : end])
                visible = max(0, min(end, len(self.content)) - change.position)
                _store(self.content, change.position, old.ljust(len(change.data), b"\0")[:visible])

    # Power loss

    def lose_power(self, rng: random.Random) -> None:
        """Apply a random effect to the changes, and empty the page cache."""
        if self._changes:
            size = len(self.content)
            match rng.choice(POWER_LOSS_EFFECTS):
                case PowerLossEffect.LOST:
                    pass
                case PowerLossEffect.KEPT:
                    self.carry_over(self._numbers)
                case PowerLossEffect.PREFIX:
                    self._keep_prefix(rng)
                case PowerLossEffect.CHAOS:
                    for change in self._changes:
                        self._keep_somehow(change, rng)
                    if len(self.durable) < size and rng.random() < 0.25:
                        # The new size reached the disk before the data did.
                        _resize(self.durable, size)
            self._changes.clear()
        self.content = bytearray(self.durable)
        self.cold_pages = set(range(len(self.content) // PAGE_BYTES + 1))

    def _keep_prefix(self, rng: random.Random) -> None:
        """Keep the changes in order, up to some byte of one of them."""
        kept = rng.randrange(len(self._changes))
        for change in self._changes[:kept]:
            _apply(self.durable, change)
        torn = self._changes[kept]
        if isinstance(torn, Write):
            _store(self.durable, torn.position, torn.data[: rng.randrange(len(torn.data) + 1)])

    def _keep_somehow(self, change: Change, rng: random.Random) -> None:
        """Write, lose or tear each sector independently; unwritten bytes are not affected."""
        if isinstance(change, Resize):
            if rng.random() < 0.5:
                _apply(self.durable, change)
            return
        for start in range(0, len(change.data), SECTOR_BYTES):
            sector = change.data[start : start + SECTOR_BYTES]
            choice = rng.randrange(5)
            if choice < 2:
                _store(self.durable, change.position + start, sector)
            elif choice == 2:
                kept = rng.randrange(len(sector) + 1)
                torn = sector[:kept] + rng.randbytes(len(sector) - kept)
                _store(self.durable, change.position + start, torn)


class Directory:
    """Directory entries, as processes see them and as they are durable."""

    __slots__ = ("durable", "entries", "modified_ms", "names")

    def __init__(self, modified_ms: int) -> None:
        self.entries: dict[str, FileNode] = {}
        self.durable: dict[str, FileNode] = {}
        self.modified_ms = modified_ms
        self.names = 0


FileNode = Inode | Directory
Naming = tuple[Directory, str, FileNode | None]


class Namespace:
    """The directory tree and its unsynced changes in order.

    A change is an atomic tuple of namings; a rename adds one name and removes another. Syncing a
    directory makes the changes durable that touch it.
    """

    def __init__(self) -> None:
        self.root = Directory(0)
        self._pending: list[tuple[Naming, ...]] = []

    def change(self, *namings: Naming) -> None:
        for directory, name, node in namings:
            _set_name(directory.entries, name, node)
        self._pending.append(namings)

    def sync(self, directory: Directory) -> None:
        later: list[tuple[Naming, ...]] = []
        for namings in self._pending:
            if any(touched is directory for touched, _, _ in namings):
                _make_durable(namings)
                # Older changes of the same names are superseded, in whichever directory.
                settled = [(touched, name) for touched, name, _ in namings]
                later = [_without(waiting, settled) for waiting in later]
            else:
                later.append(namings)
        self._pending = [namings for namings in later if namings]

    def lose_power(self, rng: random.Random) -> None:
        """Keep a prefix of the changes of each directory, because its block is written as a whole.

        With a journal all directories share one order. Without a journal each has its own.
        """
        has_journal = rng.random() < 0.5
        kept = rng.randrange(len(self._pending) + 1)
        is_cut: dict[Directory, bool] = {}
        for number, namings in enumerate(self._pending):
            if has_journal:
                survives = number < kept
            else:
                ends_here = rng.random() < 0.3
                survives = not ends_here and not any(is_cut.get(d, False) for d, _, _ in namings)
            if survives:
                _make_durable(namings)
            else:
                is_cut.update({directory: True for directory, _, _ in namings})
        self._pending.clear()
        self._forget_cache(self.root)

    def _forget_cache(self, directory: Directory) -> None:
        directory.entries = dict(directory.durable)
        for node in directory.entries.values():
            if isinstance(node, Directory):
                self._forget_cache(node)


def walk(directory: Directory, prefix: str = "") -> list[tuple[str, Inode]]:
    """All files below a directory with their paths, sorted, as processes see them."""
    found: list[tuple[str, Inode]] = []
    for name in sorted(directory.entries):
        node = directory.entries[name]
        if isinstance(node, Directory):
            found.extend(walk(node, f"{prefix}/{name}"))
        else:
            found.append((f"{prefix}/{name}", node))
    return found


def _set_name(entries: dict[str, FileNode], name: str, node: FileNode | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _make_durable(namings: tuple[Naming, ...]) -> None:
    for directory, name, node in namings:
        _set_name(directory.durable, name, node)


def _without(
    namings: tuple[Naming, ...], settled: Sequence[tuple[Directory, str]]
) -> tuple[Naming, ...]:
    return tuple(
        naming
        for naming in namings
        if not any(naming[0] is directory and naming[1] == name for directory, name in settled)
    )


def _apply(image: bytearray, change: Change) -> None:
    if isinstance(change, Write):
        _store(image, change.position, change.data)
    else:
        _resize(image, change.size)


def _store(image: bytearray, position: int, data: bytes) -> None:
    if len(image) < position:
        _resize(image, position)
    image[position : position + len(data)] = data


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))
