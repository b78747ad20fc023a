"""The machine: open files, swap, memory and cores, for the node that runs or would run here."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from riverrun.admin.tables import bytes_in_words
from riverrun.cli.doctor.findings import Finding, bad, care, good, note, or_good

LIMITS: Final = "limits"
MEMORY: Final = "memory"
OPEN_FILES_WANTED: Final = 65_536
OPEN_FILES_MIN: Final = 4096
UNLIMITED: Final = "unlimited"
SWAPPINESS_MAX: Final = 10
MEMORY_BYTES_MIN: Final = 256 * 1024 * 1024
KIB: Final = 1024

OPEN_FILES_REMEDY: Final = (
    "LimitNOFILE=262144 in the systemd unit, or `ulimit -n 262144` before the start"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """``None`` where the system does not say."""

    open_files_max: int | None
    """The hard limit, which a node uses; None for no limit."""
    swap_bytes: int | None
    swappiness: int | None
    swapped_bytes: int | None
    """Of the node's process."""
    available_bytes: int | None
    process: int | None = None
    """The process of the node; None if the limits are those of this command."""


def machine_findings(facts: MachineFacts) -> Iterator[Finding]:
    yield from _open_files(facts)
    yield from or_good(_memory(facts), MEMORY, "nothing is swapped out")


def _open_files(facts: MachineFacts) -> Iterator[Finding]:
    limit = facts.open_files_max
    of = f"process {facts.process}" if facts.process is not None else "processes of this shell"
    if limit is None or limit >= OPEN_FILES_WANTED:
        shown = "any number of" if limit is None else str(limit)
        yield good(LIMITS, f"{of} may open {shown} files")
        return
    text = f"{of} may open {limit} files: too few for many partitions and clients"
    if facts.process is None:  # a service may have other limits
        yield note(LIMITS, text, OPEN_FILES_REMEDY)
    elif limit >= OPEN_FILES_MIN:
        yield care(LIMITS, text, OPEN_FILES_REMEDY)
    else:
        yield bad(LIMITS, text, OPEN_FILES_REMEDY)


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    if facts.swapped_bytes:
        yield care(
            MEMORY,
            f"{bytes_in_words(facts.swapped_bytes)} of the node are swapped out: it stalls when it "
            "needs them",
            "add memory or remove other programs, then restart the node",
        )
    if facts.swap_bytes and (facts.swappiness or 0) > SWAPPINESS_MAX:
        yield note(
            MEMORY,
            f"the machine has swap space, and vm.swappiness is {facts.swappiness}",
            "sysctl vm.swappiness=1 keeps the node in memory",
        )
    if facts.available_bytes is not None and facts.available_bytes < MEMORY_BYTES_MIN:
        yield care(
            MEMORY,
            f"{bytes_in_words(facts.available_bytes)} of memory are available: nothing is left for "
            "the page cache",
            "add memory or remove other programs",
        )


def read_machine(process: int | None) -> MachineFacts:
    """Of this machine; ``process`` is the node, if it runs."""
    memory = _fields(Path("/proc/meminfo"))
    status = _fields(Path(f"/proc/{process}/status")) if process is not None else {}
    limit, is_of_process = _open_files_of(process)
    return MachineFacts(
        open_files_max=limit,
        swap_bytes=memory.get("SwapTotal"),
        swappiness=_number(Path("/proc/sys/vm/swappiness")),
        swapped_bytes=status.get("VmSwap"),
        available_bytes=memory.get("MemAvailable"),
        process=process if is_of_process else None,
    )


def _open_files_of(process: int | None) -> tuple[int | None, bool]:
    """The limit, and whether it is that of the process and not our own."""
    if process is not None:
        try:
            lines = Path(f"/proc/{process}/limits").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            if line.startswith("Max open files"):
                hard = line.split()[4]
                return (None if hard == UNLIMITED else int(hard)), True
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (None if limit == resource.RLIM_INFINITY else limit), process == os.getpid()


def _fields(path: Path) -> dict[str, int]:
    """Amounts in bytes of a file such as /proc/meminfo; empty on other systems."""
    found: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * KIB
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
