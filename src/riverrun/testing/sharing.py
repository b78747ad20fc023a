"""One cluster for several test processes, such as the workers of pytest-xdist.

The first process starts the cluster and writes its folder to a file that all of them know. The
kernel counts the users by their locks on the cluster's folder, so a killed process counts no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from riverrun.testing.cluster import Cluster
from riverrun.testing.processes import ClusterGone, ClusterProcesses, Settings


@contextlib.contextmanager
def shared_cluster(parent: Path, *, nodes: int, settings: Settings) -> Iterator[Cluster]:
    """The cluster with these settings that the processes with this parent folder share."""
    wanted = repr((nodes, sorted(settings.items()))).encode()
    place = parent / f"riverrun-{hashlib.sha256(wanted).hexdigest()[:12]}"
    with _locked(place):
        processes = _acquire(place, nodes, settings)
    try:
        yield Cluster.of_processes(processes)
    finally:
        with _locked(place):
            if processes.close():
                place.unlink()


def _acquire(place: Path, nodes: int, settings: Settings) -> ClusterProcesses:
    if place.exists():
        with contextlib.suppress(ClusterGone):
            return ClusterProcesses.attach(Path(place.read_text()))
    processes = ClusterProcesses.start(nodes=nodes, settings=settings)
    place.write_text(str(processes.folder))
    return processes


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Only one process at a time starts or ends the cluster."""
    descriptor = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
