"""Brings a schedule of faults upon a world, and takes them away again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from signal import SIGTERM
from typing import assert_never

from riverrun.simulation.disk import CAPACITY_BYTES
from riverrun.simulation.faults import Fault, FaultKind
from riverrun.simulation.world import World

Restart = Callable[[str, float], None]


class Injector:
    """Faults of one broker and its clients. Whoever is stopped is restarted by ``restart``."""

    def __init__(self, world: World, broker: str, restart: Restart) -> None:
        self._world = world
        self._broker = broker
        self._restart = restart
        self._undo: dict[int, Callable[[], None]] = {}
        self._is_calm = False

    def schedule(self, faults: Sequence[Fault], begin: float) -> None:
        for number, fault in enumerate(faults):
            self._world.at(begin + fault.start, self._begin, number, fault)

    def calm(self) -> None:
        """Faults stop: what lasts is undone, what is still to come does not come."""
        self._is_calm = True
        for number in list(self._undo):
            self._end(number)
        for host in self._world.hosts.values():
            host.disk.syncs_to_fail = host.disk.writes_to_fail = 0
            host.disk.at_operation = None

    def _begin(self, number: int, fault: Fault) -> None:
        if self._is_calm:
            return
        self._world.tell(f"fault {fault}")
        undo = self._apply(fault)
        if undo is not None:
            self._undo[number] = undo
            self._world.after(fault.seconds, self._end, number)

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    def _apply(self, fault: Fault) -> Callable[[], None] | None:
        world, target, seconds = self._world, fault.target, fault.seconds
        match fault.kind:
            case FaultKind.KILL | FaultKind.KILL_CLIENT:
                self._kill(target, seconds)
            case FaultKind.POWER_LOSS:
                self._power_loss(target, seconds)
            case FaultKind.KILL_AT_OPERATION:
                self._at_operation(fault, self._kill)
            case FaultKind.POWER_LOSS_AT_OPERATION:
                self._at_operation(fault, self._power_loss)
            case FaultKind.TERMINATE:
                process = world.hosts[target].process
                if process is not None and process.signal(SIGTERM):
                    self._restart(target, seconds)
            case FaultKind.PAUSE | FaultKind.PAUSE_CLIENT:
                world.pause(target, seconds)
            case FaultKind.CLOCK_JUMP:
                world.jump_clock(target, fault.amount)
            case FaultKind.EVICT:
                world.hosts[target].disk.evict()
            case FaultKind.RESET:
                world.network.reset_connections(target, self._broker)
            case (
                FaultKind.PARTITION
                | FaultKind.CUT_REQUESTS
                | FaultKind.CUT_RESPONSES
                | FaultKind.SLOW_LINK
            ):
                return self._disturb_network(fault)
            case (
                FaultKind.DISK_FULL
                | FaultKind.SYNC_ERROR
                | FaultKind.WRITE_ERROR
                | FaultKind.SLOW_DISK
            ):
                return self._disturb_disk(fault)
            case _:
                assert_never(fault.kind)
        return None

    # -- Processes ------------------------------------------------------------------------------

    def _kill(self, target: str, seconds: float) -> None:
        self._world.kill(target)
        self._restart(target, seconds)

    def _power_loss(self, target: str, seconds: float) -> None:
        self._world.power_off(target)
        self._restart(target, seconds)

    def _at_operation(self, fault: Fault, stop: Callable[[str, float], None]) -> None:
        disk = self._world.hosts[fault.target].disk
        number = disk.operations + int(fault.amount)
        disk.at_operation = (number, lambda: stop(fault.target, fault.seconds))

    # -- Things that last -----------------------------------------------------------------------

    def _disturb_network(self, fault: Fault) -> Callable[[], None]:
        network, client, broker = self._world.network, fault.target, self._broker
        match fault.kind:
            case FaultKind.PARTITION:
                return network.partition([client], [broker]).heal
            case FaultKind.CUT_REQUESTS:
                return network.partition([client], [broker], one_way=True).heal
            case FaultKind.CUT_RESPONSES:
                return network.partition([broker], [client], one_way=True).heal
            case _:
                network.slow_down(client, broker, fault.amount)
                return lambda: network.slow_down(client, broker, 1.0)

    def _disturb_disk(self, fault: Fault) -> Callable[[], None]:
        disk = self._world.hosts[fault.target].disk
        match fault.kind:
            case FaultKind.DISK_FULL:
                disk.capacity_bytes = disk.used_bytes + int(fault.amount)
            case FaultKind.SYNC_ERROR:
                disk.syncs_to_fail = int(fault.amount)
            case FaultKind.WRITE_ERROR:
                disk.writes_to_fail = int(fault.amount)
            case _:
                disk.slowness = fault.amount

        def undo() -> None:
            match fault.kind:
                case FaultKind.DISK_FULL:
                    disk.capacity_bytes = CAPACITY_BYTES
                case FaultKind.SYNC_ERROR:
                    disk.syncs_to_fail = 0
                case FaultKind.WRITE_ERROR:
                    disk.writes_to_fail = 0
                case _:
                    disk.slowness = 1.0

        return undo
