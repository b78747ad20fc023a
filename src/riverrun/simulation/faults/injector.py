"""Applies a schedule of faults to a world and ends each fault after its duration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from signal import SIGTERM

from riverrun.simulation.disks.disk import CAPACITY_BYTES, Disk
from riverrun.simulation.disks.inodes import Inode, walk
from riverrun.simulation.faults.schedule import Fault, FaultKind
from riverrun.simulation.world import World

METADATA_LOG = "__cluster_metadata-0"

Restart = Callable[[str, float], None]
Permit = Callable[[str, FaultKind], bool]


class Injector:
    """Injects faults into nodes and clients. ``restart`` schedules the restart of a process.

    ``may_damage`` decides whether a node's data may be damaged now, because promises cover the loss
    of one node's data but not of all. ``resolve_role`` maps a role such as ``controller`` or
    ``leader`` to the machine that has it now.
    """

    def __init__(
        self,
        world: World,
        brokers: Sequence[str],
        restart: Restart,
        may_damage: Permit = lambda node, kind: True,
        resolve_role: Callable[[str], str] = lambda name: name,
    ) -> None:
        self._world = world
        self._brokers = list(brokers)
        self._restart = restart
        self._may_damage = may_damage
        self._resolve_role = resolve_role
        self._undo: dict[int, Callable[[], None]] = {}
        self._is_stopped = False

    def schedule(self, faults: Sequence[Fault], begin: float) -> None:
        for number, fault in enumerate(faults):
            self._world.at(begin + fault.start, self._begin, number, fault)

    def stop(self) -> None:
        """End active faults and skip those that have not started."""
        self._is_stopped = True
        for number in list(self._undo):
            self._end(number)
        for host in self._world.hosts.values():
            host.disk.syncs_to_fail = host.disk.writes_to_fail = 0
            host.disk.at_operation = None

    def _begin(self, number: int, fault: Fault) -> None:
        if self._is_stopped:
            return
        self._world.trace(f"fault {fault}")
        undo = self._apply(dataclasses.replace(fault, target=self._named(fault.target)))
        if undo is not None:
            self._undo[number] = undo
            self._world.after(fault.seconds, self._end, number)

    def _named(self, target: str) -> str:
        """The target with roles replaced by machines; leaders are known only at the start."""
        return "|".join(
            ",".join(dict.fromkeys(self._resolve_role(name) for name in side.split(",")))
            for side in target.split("|")
        )

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    def _apply(self, fault: Fault) -> Callable[[], None] | None:
        match fault.kind:
            case FaultKind.RESET:
                for left, right in self._links(fault.target):
                    self._world.network.reset_connections(left, right)
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
                for target in fault.target.split(","):
                    self._apply_once(fault, target)
        return None

    def _apply_once(self, fault: Fault, target: str) -> None:
        """Apply a fault that has no end."""
        world, seconds = self._world, fault.seconds
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
            case FaultKind.WIPE_DISK | FaultKind.LOST_TAIL | FaultKind.BIT_ROT:
                self._damage_disk(fault, target)
            case _:
                raise AssertionError(f"{fault.kind} is not instantaneous")

    # Processes

    def _kill(self, target: str, seconds: float) -> None:
        self._world.kill(target)
        self._restart(target, seconds)

    def _power_loss(self, target: str, seconds: float) -> None:
        if self._may_damage(target, FaultKind.POWER_LOSS):
            self._world.power_off(target)
        else:
            self._world.kill(target)
        self._restart(target, seconds)

    def _damage_disk(self, fault: Fault, target: str) -> None:
        """Kill a node and remove or change durable data before it restarts."""
        if not self._may_damage(target, fault.kind):
            self._world.trace(f"{target}: not damaged, another node has not recovered yet")
            return
        disk = self._world.hosts[target].disk
        self._kill(target, fault.seconds)
        match fault.kind:
            case FaultKind.WIPE_DISK:
                self._world.trace(f"{target}: disk replaced by an empty one")
                disk.wipe()
            case FaultKind.LOST_TAIL:
                cut_metadata_log(disk, int(fault.amount))
            case _:
                flip_bit(disk, int(fault.amount))

    def _at_operation(self, fault: Fault, stop: Callable[[str, float], None]) -> None:
        disk = self._world.hosts[fault.target].disk
        number = disk.operations + int(fault.amount)
        disk.at_operation = (number, lambda: stop(fault.target, fault.seconds))

    # Faults with a duration

    def _sides(self, target: str) -> tuple[list[str], list[str]]:
        """The two sides of a partition. The default other side of a client is all brokers, that of
        a broker all machines."""
        near, _, far = target.partition("|")
        left = near.split(",")
        if far:
            return left, [name for name in far.split(",") if name not in left]
        has_broker = any(name in self._brokers for name in left)
        others = list(self._world.hosts) if has_broker else self._brokers
        return left, [name for name in others if name not in left]

    def _links(self, target: str) -> list[tuple[str, str]]:
        left, right = self._sides(target)
        return [(near, far) for near in left for far in right]

    def _disturb_network(self, fault: Fault) -> Callable[[], None] | None:
        network, (left, right) = self._world.network, self._sides(fault.target)
        if not right:
            return None
        match fault.kind:
            case FaultKind.PARTITION:
                return network.partition(left, right).heal
            case FaultKind.CUT_REQUESTS:
                return network.partition(left, right, one_way=True).heal
            case FaultKind.CUT_RESPONSES:
                return network.partition(right, left, one_way=True).heal
            case _:
                return self._slow_down(fault.target, fault.amount)

    def _slow_down(self, target: str, amount: float) -> Callable[[], None]:
        def slow_down(factor: float) -> None:
            for near, far in self._links(target):
                self._world.network.slow_down(near, far, factor)

        slow_down(amount)
        return lambda: slow_down(1.0)

    def _disturb_disk(self, fault: Fault) -> Callable[[], None] | None:
        disk = self._world.hosts[fault.target].disk
        match fault.kind:
            case FaultKind.DISK_FULL:
                disk.capacity_bytes = disk.used_bytes + int(fault.amount)
            case FaultKind.SYNC_ERROR:
                if not self._may_damage(fault.target, fault.kind):
                    return None
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


def cut_metadata_log(disk: Disk, count: int) -> None:
    """Remove synced bytes from the end of the metadata log."""
    logs = [(p, i) for p, i in _log_files(disk) if f"/{METADATA_LOG}/" in p and i.content]
    if logs:
        path, inode = logs[-1]
        size = max(0, len(inode.content) - count)
        inode.truncate(size, inode.modified_ms)
        inode.carry_over(inode.last_change())
        disk.world.trace(f"{disk.host}: {path} is cut to {size} bytes")


def flip_bit(disk: Disk, choice: int) -> None:
    """Flip one bit of one log file."""
    logs = [(path, inode) for path, inode in _log_files(disk) if inode.content]
    if logs:
        path, inode = logs[choice % len(logs)]
        position = (choice * 7919) % len(inode.content)
        disk.rot(path, position, choice % 8)
        disk.world.trace(f"{disk.host}: a bit of {path} flips at {position}")


def _log_files(disk: Disk) -> list[tuple[str, Inode]]:
    return [(path, inode) for path, inode in walk(disk.names.root) if path.endswith(".log")]
