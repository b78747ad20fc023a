"""The disk of one machine, which guarantees only what POSIX and fsync guarantee.

Faults are plain fields that a scenario sets: capacity, slowness, the number of syncs that fail, the
operation at which the process or the machine stops.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from riverrun.simulation.disks.inodes import PAGE_BYTES, Directory, FileNode, Inode, Namespace, walk
from riverrun.simulation.disks.mount import Mount
from riverrun.simulation.failures import ProcessDied

if TYPE_CHECKING:
    from riverrun.simulation.loop import NodeLoop
    from riverrun.simulation.world import World

CAPACITY_BYTES = 64 * 1024**3


class Disk:
    """A file system and its current faults."""

    def __init__(self, world: World, host: str) -> None:
        self.world = world
        self.host = host
        self.rng = world.stream(f"disk/{host}")
        self.names = Namespace()
        self.used_bytes = 0
        self.capacity_bytes = CAPACITY_BYTES
        self.slowness = 1.0
        self.cold_probability = 0.02
        self.syncs_to_fail = 0
        self.writes_to_fail = 0
        self.operations = 0
        self.at_operation: tuple[int, Callable[[], None]] | None = None
        self.before_damage: Callable[[], None] = lambda: None
        self.locks: dict[str, NodeLoop] = {}
        self._mounts: dict[NodeLoop, Mount] = {}

    # Processes

    def mount(self, process: NodeLoop) -> Mount:
        self._mounts[process] = mounted = Mount(self, process)
        return mounted

    def unmount(self, process: NodeLoop) -> None:
        """Release the locks of a stopped process; its writes stay in the page cache."""
        self._mounts.pop(process, None)
        for path in [path for path, owner in self.locks.items() if owner is process]:
            del self.locks[path]

    def operation(self, process: NodeLoop, line: str) -> None:
        """Record an operation; a scheduled fault may stop the process here."""
        if process.is_halted:
            raise ProcessDied
        self.operations += 1
        self.world.record(f"disk {self.host} {line}")
        if self.at_operation is not None and self.operations >= self.at_operation[0]:
            happens = self.at_operation[1]
            self.at_operation = None
            happens()
            if process.is_halted:
                raise ProcessDied

    # Delays and errors

    def sync_seconds(self) -> float:
        """Usually up to 4 ms; one sync in fifty is ten times slower, as on real disks."""
        typical = self.rng.uniform(0.2e-3, 4e-3)
        return self.slowness * (typical if self.rng.random() < 0.98 else typical * 10)

    def access_seconds(self) -> float:
        """The time of a name lookup or page read that misses the cache."""
        return self.slowness * self.rng.uniform(30e-6, 1e-3)

    def write_seconds(self) -> float:
        """The time of a copy into the page cache: 0, unless a slow disk throttles writers."""
        if self.slowness > 1 and self.rng.random() < 0.05:
            return self.slowness * self.rng.uniform(0.1e-3, 1e-3)
        return 0.0

    def fails_to_sync(self) -> bool:
        if self.syncs_to_fail > 0:
            self.syncs_to_fail -= 1
            self.world.trace(f"{self.host}: sync fails")
            self.before_damage()
            return True
        return False

    def fails_to_write(self) -> bool:
        if self.writes_to_fail > 0:
            self.writes_to_fail -= 1
            return True
        return False

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    # Faults

    def lose_power(self) -> None:
        """Lose, keep or tear unsynced data at random; see ``inodes``."""
        self.before_damage()
        self.names.lose_power(self.rng)
        self.used_bytes = 0
        for path, inode in walk(self.names.root):
            inode.lose_power(self.rng)
            inode.names = 1
            self.used_bytes += len(inode.content)
            self.world.record(f"disk {self.host} survives {path} {len(inode.content)}")
        self.locks.clear()
        self.syncs_to_fail = self.writes_to_fail = 0
        self.at_operation = None

    def evict(self) -> None:
        """Evict all pages from the page cache, so that reads wait for the disk."""
        for _, inode in walk(self.names.root):
            inode.cold_pages.update(range(len(inode.content) // PAGE_BYTES + 1))

    def rot(self, path: str, position: int, bit: int) -> None:
        """Flip one bit of a file silently."""
        node = self.find(path)
        assert isinstance(node, Inode), f"{path} is not a file"
        for image in (node.durable, node.content):
            if position < len(image):
                image[position] ^= 1 << bit
        self.world.record(f"disk {self.host} rots {path} {position} {bit}")

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        assert not self._mounts, f"{self.host} is in use"
        self.names = Namespace()
        self.used_bytes = 0
        self.locks.clear()
        self.world.record(f"disk {self.host} wiped")

    # Names

    def find(self, path: str) -> FileNode | None:
        """The file or directory at a path, as processes see it."""
        assert path.startswith("/"), f"{path} is not absolute"
        node: FileNode = self.names.root
        for name in path.split("/"):
            if name:
                if not isinstance(node, Directory):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                found = node.entries.get(name)
                if found is None:
                    return None
                node = found
        return node

    def files(self) -> dict[str, bytes]:
        """Every file with its content, as processes see it."""
        return {path: bytes(inode.content) for path, inode in walk(self.names.root)}

    def durable_files(self) -> dict[str, bytes]:
        """Every file with the content that is certain to survive a power loss."""
        return dict(_durable(self.names.root, ""))


def _durable(directory: Directory, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for name in sorted(directory.durable):
        node = directory.durable[name]
        if isinstance(node, Directory):
            found.extend(_durable(node, f"{prefix}/{name}"))
        else:
            found.append((f"{prefix}/{name}", bytes(node.durable)))
    return found
