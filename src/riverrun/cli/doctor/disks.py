"""The disk of a data directory: space, file system, and the time of an fsync."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from riverrun.admin.tables import bytes_in_words
from riverrun.cli.doctor.findings import Finding, bad, care, good, note

DISK: Final = "disk"
VOLATILE: Final = ("tmpfs", "ramfs")
REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "glusterfs", "sshfs")
OVERLAY: Final = "overlay"
FREE_CARE: Final = 0.15
FREE_BAD: Final = 0.05
FILES_CARE: Final = 0.05
FSYNC_NOTE_SECONDS: Final = 0.02
FSYNC_CARE_SECONDS: Final = 0.1
FSYNCS: Final = 5
WRITE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """The file system below a directory."""

    directory: str
    exists: bool
    total_bytes: int
    free_bytes: int
    free_files_ratio: float | None
    """None if the file system does not limit the number of files."""
    kind: str
    """Such as ext4 or xfs; empty if unknown."""
    is_read_only: bool
    is_writable: bool
    """By this user."""
    fsync_seconds: float | None
    """Median; None if it could not be measured."""


def disk_findings(facts: DiskFacts) -> Iterator[Finding]:
    if facts.is_read_only:
        remedy = "check the kernel's log for errors of the disk, and mount it again for writing"
        yield bad(DISK, f"{facts.directory} is read-only", remedy)
    elif not facts.is_writable:
        text = f"{facts.directory} is not writable for user {os.geteuid()}, who runs this command"
        yield note(DISK, text, "run doctor as the user of the node")
    if not facts.exists:
        yield note(DISK, f"{facts.directory} does not exist yet", "the first start creates it")
    yield from _space(facts)
    yield from _kind(facts)
    yield from _fsync(facts)


def _space(facts: DiskFacts) -> Iterator[Finding]:
    ratio = facts.free_bytes / max(facts.total_bytes, 1)
    shown = (
        f"{bytes_in_words(facts.free_bytes)} of {bytes_in_words(facts.total_bytes)} are free"
        f" ({ratio:.0%}) below {facts.directory}"
    )
    remedy = "add space, or lower log.retention.bytes or log.retention.ms"
    if ratio < FREE_BAD:
        yield bad(DISK, shown, remedy)
    elif ratio < FREE_CARE:
        yield care(DISK, shown, remedy)
    else:
        yield good(DISK, shown)
    if facts.free_files_ratio is not None and facts.free_files_ratio < FILES_CARE:
        text = f"{facts.free_files_ratio:.0%} of the files of the file system are left"
        yield care(DISK, text, "create the file system with more inodes, or use xfs")


def _kind(facts: DiskFacts) -> Iterator[Finding]:
    kind = facts.kind
    if kind in VOLATILE:
        text = f"{facts.directory} is on {kind}: all data is lost when the machine restarts"
        yield bad(DISK, text, "name a directory on a disk in log.dirs")
    elif kind in REMOTE or kind.startswith("fuse"):
        text = f"{facts.directory} is on {kind}: an fsync may not be durable, and locks may fail"
        yield care(DISK, text, "use a local disk; replicas on other nodes protect the data")
    elif kind == OVERLAY:
        text = f"{facts.directory} is in the container itself: it is deleted with it"
        yield care(DISK, text, "mount a volume at log.dirs")
    elif kind:
        yield good(DISK, f"the file system is {kind}")


def _fsync(facts: DiskFacts) -> Iterator[Finding]:
    seconds = facts.fsync_seconds
    if seconds is None:
        return
    text = f"an fsync takes {seconds * 1000:.1f} ms"
    if seconds >= FSYNC_CARE_SECONDS:
        yield care(DISK, text, "use a faster disk, or one that other programs do not use")
    elif seconds >= FSYNC_NOTE_SECONDS:
        yield note(DISK, text, "log.flush.before.ack and elections of controllers wait for it")
    else:
        yield good(DISK, text)


def read_disk(directory: str) -> DiskFacts:
    """Raises OSError if no parent of the directory can be read."""
    path = Path(directory)
    existing = next(at for at in (path, *path.parents) if at.exists())
    space = os.statvfs(existing)
    is_read_only = bool(space.f_flag & os.ST_RDONLY)
    is_writable = os.access(existing, os.W_OK | os.X_OK)
    return DiskFacts(
        directory=directory,
        exists=path.exists(),
        total_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
        free_files_ratio=space.f_favail / space.f_files if space.f_files else None,
        kind=file_system_of(existing, _mounts()),
        is_read_only=is_read_only,
        is_writable=is_writable,
        fsync_seconds=measure_fsync(existing) if is_writable and not is_read_only else None,
    )


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""


def file_system_of(path: Path, mounts: str) -> str:
    """The kind of the file system with this path, by the lines of /proc/self/mountinfo."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        before, found, after = line.partition(" - ")
        if not found:
            continue
        point = before.split()[4].replace("\\040", " ")
        is_above = real == point or real.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def measure_fsync(folder: Path) -> float | None:
    """The median of some small writes, in a file without a name where the system has these."""
    times = []
    with contextlib.suppress(OSError), _unnamed(folder) as descriptor:
        for _ in range(FSYNCS):
            os.write(descriptor, bytes(WRITE_BYTES))
            began = time.perf_counter()
            os.fsync(descriptor)
            times.append(time.perf_counter() - began)
    return statistics.median(times) if times else None


@contextlib.contextmanager
def _unnamed(folder: Path) -> Iterator[int]:
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except (OSError, AttributeError):
        with tempfile.TemporaryFile(dir=folder) as file:
            yield file.fileno()
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
