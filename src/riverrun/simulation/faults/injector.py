"""Brings a schedule of faults upon a world, and takes them away again."""

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
    """Faults of brokers and their clients. Whoever is stopped is restarted by ``restart``.

    ``may_damage`` says whether a node's data may be damaged now: what is promised when one node
    loses its data is not promised when all of them do. ``who_is`` knows who plays a part, such as
    ``controller`` or ``leader``, at the moment.
    """

    def __init__(
        self,
        world: World,
        brokers: Sequence[str],
        restart: Restart,
        may_damage: Permit = lambda node, kind: True,
        who_is: Callable[[str], str] = lambda name: name,
    ) -> None:
        self._world = world
        self._brokers = list(brokers)
        self._restart = restart
        self._may_damage = may_damage
        self._who_is = who_is
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
        undo = self._apply(dataclasses.replace(fault, target=self._named(fault.target)))
        if undo is not None:
            self._undo[number] = undo
            self._world.after(fault.seconds, self._end, number)

    def _named(self, target: str) -> str:
        """The target with the names of machines, for who leads is known only when it comes."""
        return "|".join(
            ",".join(dict.fromkeys(self._who_is(name) for name in side.split(",")))
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
                    self._strike(fault, target)
        return None

    def _strike(self, fault: Fault, target: str) -> None:
        """What happens in a moment."""
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
                self._destroy(fault, target)
            case _:
                raise AssertionError(f"{fault.kind} does not happen in a moment")

    # -- Processes ------------------------------------------------------------------------------

    def _kill(self, target: str, seconds: float) -> None:
        self._world.kill(target)
        self._restart(target, seconds)

    def _power_loss(self, target: str, seconds: float) -> None:
        if self._may_damage(target, FaultKind.POWER_LOSS):
            self._world.power_off(target)
        else:
            self._world.kill(target)
        self._restart(target, seconds)

    def _destroy(self, fault: Fault, target: str) -> None:
        """What was safely on a disk is gone or changed when the node starts again."""
        if not self._may_damage(target, fault.kind):
            self._world.tell(f"{target}: spared, for another node is not whole yet")
            return
        disk = self._world.hosts[target].disk
        self._kill(target, fault.seconds)
        match fault.kind:
            case FaultKind.WIPE_DISK:
                self._world.tell(f"{target}: disk replaced by an empty one")
                disk.wipe()
            case FaultKind.LOST_TAIL:
                cut_metadata_log(disk, int(fault.amount))
            case _:
                flip_bit(disk, int(fault.amount))

    def _at_operation(self, fault: Fault, stop: Callable[[str, float], None]) -> None:
        disk = self._world.hosts[fault.target].disk
        number = disk.operations + int(fault.amount)
        disk.at_operation = (number, lambda: stop(fault.target, fault.seconds))

    # -- Things that last -----------------------------------------------------------------------

    def _sides(self, target: str) -> tuple[list[str], list[str]]:
        """The two sides of a cut. A client alone is cut from brokers, a broker from everybody."""
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
    """So many bytes at the end of the metadata log are gone, though they were synced."""
    logs = [(p, i) for p, i in _log_files(disk) if f"/{METADATA_LOG}/" in p and i.content]
    if logs:
        path, inode = logs[-1]
        size = max(0, len(inode.content) - count)
        inode.truncate(size, inode.modified_ms)
        inode.carry_over(inode.last_change())
        disk.world.tell(f"{disk.host}: {path} loses its end, {size} bytes are left")


def flip_bit(disk: Disk, choice: int) -> None:
    """One bit of one log flips."""
    logs = [(path, inode) for path, inode in _log_files(disk) if inode.content]
    if logs:
        path, inode = logs[choice % len(logs)]
        position = (choice * 7919) % len(inode.content)
        disk.rot(path, position, choice % 8)
        disk.world.tell(f"{disk.host}: a bit of {path} flips at {position}")


def _log_files(disk: Disk) -> list[tuple[str, Inode]]:
    return [(path, inode) for path, inode in walk(disk.names.root) if path.endswith(".log")]
