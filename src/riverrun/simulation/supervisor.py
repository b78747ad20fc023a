"""Restarts processes that are down."""

from __future__ import annotations

from riverrun.simulation.world import Main, World

SUPERVISE_SECONDS = 0.25
START_PAUSE_SECONDS = 1.0


class ProcessSupervisor:
    """Runs one process per machine and restarts it, at most once per second."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._mains: dict[str, Main] = {}
        self._not_before: dict[str, float] = {}

    def add(self, name: str, main: Main) -> None:
        self._world.host(name)
        self._mains[name] = main

    def remove(self, name: str) -> None:
        """Stop supervising a process; it is not restarted."""
        self._mains.pop(name, None)

    def restart_after(self, name: str, seconds: float) -> None:
        self._not_before[name] = self._world.now + seconds

    def begin(self) -> None:
        """Start all processes that are down and due, and check again periodically."""
        world = self._world
        for name, main in self._mains.items():
            is_due = world.now >= self._not_before.get(name, 0.0)
            if world.hosts[name].process is None and is_due:
                self._not_before[name] = world.now + START_PAUSE_SECONDS
                world.start(name, main)
        world.after(SUPERVISE_SECONDS, self.begin)
