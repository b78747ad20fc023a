"""Starts clusters for scenarios and reuses one while it is healthy and has the right settings."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from riverrun.chaos.cluster import ChaosCluster, ClusterFailed, until
from riverrun.chaos.probe import Probe
from riverrun.chaos.scenarios.scenario import Scenario

START_SECONDS_MAX = 60.0
LAG_SETTINGS = {"replica.lag.time.max.ms": "3000"}
"""A slow follower leaves the ISR within seconds, which keeps scenarios short."""


@dataclass(slots=True, kw_only=True)
class RunningCluster:
    """A running cluster and its probe."""

    cluster: ChaosCluster
    probe: Probe
    key: tuple[object, ...]

    def close(self) -> None:
        self.probe.close()
        self.cluster.close()


class ClusterPool:
    """Provides clusters for scenarios, and keeps the files of failed ones."""

    def __init__(
        self,
        *,
        peer: str = "riverrun",
        is_secure: bool = False,
        count: int = 3,
        folder: Path | None = None,
        log: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.peer, self._is_secure, self._count = peer, is_secure, count
        self._folder = folder or Path(tempfile.mkdtemp(prefix="riverrun-chaos-"))
        self._log = log
        self._built = 0
        self._kept: list[Path] = []
        self._current: RunningCluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()
        if not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def count_for(self, scenario: Scenario) -> int:
        return max(self._count, scenario.nodes_min)

    def cluster_for(self, scenario: Scenario) -> RunningCluster:
        """A running cluster. Raises ``ClusterFailed``, or ``NoSmallDisk`` if it cannot mount it."""
        count = self.count_for(scenario)
        key = (tuple(sorted(scenario.settings.items())), scenario.small_disk_bytes, count)
        if self._current is not None and self._current.key == key:
            return self._current
        self.discard()
        self._built += 1
        folder = self._folder / f"cluster-{self._built}"
        size = scenario.small_disk_bytes
        cluster = ChaosCluster(
            folder=folder,
            count=count,
            settings={**LAG_SETTINGS, **scenario.settings},
            peer=self.peer,
            is_secure=self._is_secure,
            small_disks=dict.fromkeys(range(1, count + 1), size) if size else {},
        )
        self._log(f"starting {count} nodes in {folder}")
        cluster.__enter__()
        self._current = RunningCluster(cluster=cluster, probe=Probe(cluster), key=key)
        try:
            wait_until_up(cluster, self._current.probe, START_SECONDS_MAX)
        except ClusterFailed:
            self.keep()
            raise
        return self._current

    def keep(self) -> Path | None:
        """Stop a failed cluster and keep its files."""
        if self._current is None:
            return None
        folder = self._current.cluster.folder
        self._kept.append(folder)
        self._current.close()
        self._current = None
        return folder

    def discard(self) -> None:
        """Stop the cluster and remove its files."""
        if self._current is not None:
            folder = self._current.cluster.folder
            self._current.close()
            self._current = None
            shutil.rmtree(folder, ignore_errors=True)


def wait_until_up(cluster: ChaosCluster, probe: Probe, seconds: float) -> None:
    """Wait until every node sees all nodes as live brokers."""
    expected = tuple(sorted(cluster.nodes))

    def look() -> bool:
        died = cluster.died()
        if died:
            raise ClusterFailed("; ".join(died))
        known = probe.brokers()
        return len(known) == len(expected) and all(row == expected for row in known.values())

    until(look, seconds=seconds, what=f"all {len(expected)} nodes see each other")
