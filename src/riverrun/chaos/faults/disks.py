"""Small file systems, and damage to files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FLIPPED_BYTES = 64


class NoSmallDisk(Exception):
    """A small file system cannot be mounted here; the message names the reason."""


def mount_small(place: Path, size: int) -> None:
    """Mount a small tmpfs that can be filled without affecting other files."""
    place.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        raise NoSmallDisk("filling a disk requires root, to mount a small tmpfs")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "riverrun-chaos", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NoSmallDisk(f"cannot mount a small tmpfs: {done.stderr.strip()}")


def unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def fill(place: Path) -> Path:
    """Fill the file system with one file; return its path."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            while True:
                try:
                    if file.write(bytes(size)) < size:
                        break
                except OSError:
                    break
    return ballast


def flip(path: Path, *, where: float = 0.5) -> int:
    """Flip bytes in a file, as bit rot does; return their position."""
    size = path.stat().st_size
    position = max(int(size * where) - FLIPPED_BYTES, 0)
    with path.open("r+b") as file:
        file.seek(position)
        found = file.read(FLIPPED_BYTES)
        file.seek(position)
        file.write(bytes(byte ^ 0x5A for byte in found))
    return position


def cut(path: Path, *, keep: float = 0.5) -> int:
    """Truncate a file; return its new size."""
    size = int(path.stat().st_size * keep)
    os.truncate(path, size)
    return size


def largest(paths: list[Path]) -> Path:
    assert paths, "there is no such file"
    return max(paths, key=lambda path: (path.stat().st_size, str(path)))
