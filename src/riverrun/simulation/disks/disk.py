"""The disk of one machine: it keeps its promises and nothing more, and it can be told to misbehave.

Faults are plain fields that a scenario sets: a size, a slowness, a number of syncs that will fail,
an operation at which the process or the machine dies. ``mount`` gives a process its view of the
disk; ``inodes`` holds what lies on it.
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
    """One file system, with the faults that it has at the moment."""

    def __init__(self, world: World, host: str) -> None:
        self.world = world
        self.host = host
        self.chance = world.stream(f"disk/{host}")
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

    # -- Processes ------------------------------------------------------------------------------

    def mount(self, process: NodeLoop) -> Mount:
        self._mounts[process] = mounted = Mount(self, process)
        return mounted

    def unmount(self, process: NodeLoop) -> None:
        """The process is gone: its handles are dead and its locks free; what it wrote stays."""
        self._mounts.pop(process, None)
        for path in [path for path, owner in self.locks.items() if owner is process]:
            del self.locks[path]

    def operation(self, process: NodeLoop, line: str) -> None:
        """Every operation of a process passes here, and may be its last."""
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

    # -- Time and failure -----------------------------------------------------------------------

    def sync_seconds(self) -> float:
        """Mostly a few hundred microseconds; one in fifty is slow, as measured on real disks."""
        typical = self.chance.uniform(0.2e-3, 4e-3)
        return self.slowness * (typical if self.chance.random() < 0.98 else typical * 10)

    def access_seconds(self) -> float:
        """A name looked up or a page read that is not in memory."""
        return self.slowness * self.chance.uniform(30e-6, 1e-3)

    def write_seconds(self) -> float:
        """A copy into the page cache, unless so much is dirty that writers are made to wait."""
        if self.slowness > 1 and self.chance.random() < 0.05:
            return self.slowness * self.chance.uniform(0.1e-3, 1e-3)
        return 0.0

    def fails_to_sync(self) -> bool:
        if self.syncs_to_fail > 0:
            self.syncs_to_fail -= 1
            self.world.tell(f"{self.host}: a sync fails")
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

    # -- Faults ---------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """The fate of everything unsynced is drawn; see ``inodes``."""
        self.before_damage()
        self.names.lose_power(self.chance)
        self.used_bytes = 0
        for path, inode in walk(self.names.root):
            inode.lose_power(self.chance)
            inode.names = 1
            self.used_bytes += len(inode.content)
            self.world.record(f"disk {self.host} survives {path} {len(inode.content)}")
        self.locks.clear()
        self.syncs_to_fail = self.writes_to_fail = 0
        self.at_operation = None

    def evict(self) -> None:
        """Memory is short: clean pages leave it, and reads of them have to wait for the disk."""
        for _, inode in walk(self.names.root):
            inode.cold_pages.update(range(len(inode.content) // PAGE_BYTES + 1))

    def rot(self, path: str, position: int, bit: int) -> None:
        """One bit of what the platter holds flips, unnoticed."""
        node = self.find(path)
        assert isinstance(node, Inode), f"{path} is not a file"
        for image in (node.durable, node.content):
            if position < len(image):
                image[position] ^= 1 << bit
        self.world.record(f"disk {self.host} rots {path} {position} {bit}")

    def wipe(self) -> None:
        """Somebody put an empty disk in the place of this one."""
        assert not self._mounts, f"{self.host} is in use"
        self.names = Namespace()
        self.used_bytes = 0
        self.locks.clear()
        self.world.record(f"disk {self.host} wiped")

    # -- Names ----------------------------------------------------------------------------------

    def find(self, path: str) -> FileNode | None:
        """What lies at a path, as processes see it."""
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
        """Every file with what of it would surely survive the loss of power."""
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
