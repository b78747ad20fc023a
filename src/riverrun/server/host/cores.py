"""The cores that this process may use: those of its affinity mask, within the quota of its cgroup.

A container or a systemd unit with a CPU quota sees all cores of the machine. More processes than
the quota has cores would only share them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """At least 1. A quota of 2.5 cores counts as 2."""
    return within_quotas(_affinity(), _quotas())


def within_quotas(cores: int, quotas: list[str]) -> int:
    """``quotas`` are the contents of ``cpu.max`` files: ``max 100000`` or ``250000 100000``."""
    for text in quotas:
        quota, _, period = text.strip().partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> list[str]:
    """The quota of our cgroup (version 2) and of those above it; all of them apply."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = CGROUPS / own.strip("/")
    found = []
    for place in (folder, *folder.parents):
        if not place.is_relative_to(CGROUPS):
            break
        try:
            found.append((place / "cpu.max").read_text())
        except OSError:
            continue
    return found
