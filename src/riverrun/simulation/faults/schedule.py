"""Faults as data: what goes wrong, when, for how long, and to whom.

A schedule of faults is drawn from the seed, written down in a failure's report, made smaller, and
kept in tests. Applying one to a world is left to ``injector``. A target is a machine, several of
them (``node-1,node-2``), or two sides of a cut in the network (``node-1|node-2,node-3``); without
the second side everybody else is meant. In a cluster one may also name a part that somebody plays
at that moment: the active ``controller``, the ``leader`` of the first partition, the ``follower``
that comes next in its replicas, or the ``other-follower``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """``amount`` of a fault means what stands behind each."""

    KILL = "kill"
    KILL_AT_OPERATION = "kill-at-operation"  # so many operations of the disk after its start
    POWER_LOSS = "power-loss"
    POWER_LOSS_AT_OPERATION = "power-loss-at-operation"  # as above
    TERMINATE = "terminate"
    PAUSE = "pause"
    DISK_FULL = "disk-full"  # bytes that are still free
    SYNC_ERROR = "sync-error"  # how many syncs fail
    WRITE_ERROR = "write-error"  # how many writes fail
    SLOW_DISK = "slow-disk"  # how many times as slow
    EVICT = "evict"
    PARTITION = "partition"
    CUT_REQUESTS = "cut-requests"
    CUT_RESPONSES = "cut-responses"
    RESET = "reset"
    SLOW_LINK = "slow-link"  # how many times as slow
    CLOCK_JUMP = "clock-jump"  # seconds
    KILL_CLIENT = "kill-client"
    PAUSE_CLIENT = "pause-client"
    WIPE_DISK = "wipe-disk"
    LOST_TAIL = "lost-tail"  # bytes that the metadata log loses at its end
    BIT_ROT = "bit-rot"  # a number that chooses the bit


ON_CLIENTS = frozenset(
    {
        FaultKind.PARTITION,
        FaultKind.CUT_REQUESTS,
        FaultKind.CUT_RESPONSES,
        FaultKind.RESET,
        FaultKind.SLOW_LINK,
        FaultKind.KILL_CLIENT,
        FaultKind.PAUSE_CLIENT,
    }
)
ON_CLUSTERS = frozenset({FaultKind.WIPE_DISK, FaultKind.LOST_TAIL, FaultKind.BIT_ROT})
"""What a node that stands alone cannot survive, and need not."""
CONTROLLER, LEADER, FOLLOWER, OTHER = "controller", "leader", "follower", "other-follower"
PARTS = (CONTROLLER, LEADER, FOLLOWER, OTHER)
SEVERAL_AT_ONCE = frozenset(
    {FaultKind.KILL, FaultKind.POWER_LOSS, FaultKind.PAUSE, FaultKind.TERMINATE}
)

_AMOUNTS: dict[FaultKind, tuple[float, float]] = {
    FaultKind.KILL_AT_OPERATION: (1, 60),
    FaultKind.POWER_LOSS_AT_OPERATION: (1, 60),
    FaultKind.DISK_FULL: (0, 3000),
    FaultKind.SYNC_ERROR: (1, 2),
    FaultKind.WRITE_ERROR: (1, 3),
    FaultKind.SLOW_DISK: (5, 200),
    FaultKind.SLOW_LINK: (5, 300),
    FaultKind.CLOCK_JUMP: (-30, 30),
    FaultKind.LOST_TAIL: (1, 2000),
    FaultKind.BIT_ROT: (0, 1_000_000),
}
_SECONDS_MAX: dict[FaultKind, float] = {FaultKind.PAUSE: 4.0, FaultKind.PAUSE_CLIENT: 8.0}
SECONDS_MAX = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Times are seconds since the start of the scenario."""

    kind: FaultKind
    start: float
    seconds: float
    target: str
    amount: float = 0.0

    def __str__(self) -> str:
        text = f"{self.kind.value}@{self.start:g}+{self.seconds:g}:{self.target}"
        return f"{text}={self.amount:g}" if self.kind in _AMOUNTS else text

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The fault that ``str`` wrote."""
        kind, _, rest = text.partition("@")
        times, _, where = rest.partition(":")
        start, _, seconds = times.partition("+")
        target, _, amount = where.partition("=")
        return cls(
            kind=FaultKind(kind),
            start=float(start),
            seconds=float(seconds),
            target=target,
            amount=float(amount or 0),
        )


def parse_schedule(text: str) -> tuple[Fault, ...]:
    return tuple(Fault.parse(part) for part in text.split())


def write_schedule(faults: Sequence[Fault]) -> str:
    return " ".join(str(fault) for fault in faults)


def draw_faults(
    chance: random.Random, *, until: float, broker: str, clients: Sequence[str], count_max: int
) -> tuple[Fault, ...]:
    """A schedule: which kinds may happen is drawn first, so that runs differ in character."""
    alone = [kind for kind in FaultKind if kind not in ON_CLUSTERS]
    kinds = [kind for kind in alone if chance.random() < 0.5] or [FaultKind.KILL]
    faults = []
    for _ in range(chance.randint(1, count_max)):
        kind = chance.choice(kinds)
        low, high = _AMOUNTS.get(kind, (0, 0))
        fault = Fault(
            kind=kind,
            start=round(chance.uniform(0.5, until), 3),
            seconds=round(chance.uniform(0.05, _SECONDS_MAX.get(kind, SECONDS_MAX)), 3),
            target=chance.choice(clients) if kind in ON_CLIENTS else broker,
            amount=float(round(chance.uniform(low, high))),
        )
        faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.start))


def draw_cluster_faults(
    chance: random.Random,
    *,
    until: float,
    nodes: Sequence[str],
    clients: Sequence[str],
    count_max: int,
    kinds: Sequence[FaultKind] = tuple(FaultKind),
) -> tuple[Fault, ...]:
    """A schedule for several nodes; some runs are about the network, some about disks, and so on.

    Now and then a fault meets several nodes at once, or comes twice in a row.
    """
    chosen = [kind for kind in kinds if chance.random() < 0.4] or [FaultKind.KILL]
    faults: list[Fault] = []
    for _ in range(chance.randint(1, count_max)):
        kind = chance.choice(chosen)
        low, high = _AMOUNTS.get(kind, (0, 0))
        fault = Fault(
            kind=kind,
            start=round(chance.uniform(0.5, until), 3),
            seconds=round(chance.uniform(0.05, _SECONDS_MAX.get(kind, SECONDS_MAX)), 3),
            target=_draw_target(chance, kind, nodes, clients),
            amount=float(round(chance.uniform(low, high))),
        )
        faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.start))


def _draw_target(
    chance: random.Random, kind: FaultKind, nodes: Sequence[str], clients: Sequence[str]
) -> str:
    if kind in (FaultKind.KILL_CLIENT, FaultKind.PAUSE_CLIENT):
        return chance.choice(clients)
    if kind in ON_CLIENTS:
        return _draw_sides(chance, nodes, clients)
    if kind in SEVERAL_AT_ONCE and chance.random() < 0.3:
        return ",".join(sorted(chance.sample(nodes, chance.randint(1, len(nodes)))))
    return chance.choice(PARTS) if chance.random() < 0.4 else chance.choice(nodes)


def _draw_sides(chance: random.Random, nodes: Sequence[str], clients: Sequence[str]) -> str:
    """One node from all, one from another, a group from the rest, or a client from a node."""
    style = chance.randrange(4)
    if style == 0 or len(nodes) == 1:
        return chance.choice([*nodes, *PARTS, *clients])
    if style == 1:
        return f"{chance.choice(clients)}|{chance.choice(nodes)}"
    shuffled = chance.sample(nodes, len(nodes))
    border = 1 if style == 2 else chance.randint(1, len(nodes) - 1)
    rest = shuffled[border:] if style == 3 else shuffled[border : border + 1]
    return f"{','.join(sorted(shuffled[:border]))}|{','.join(sorted(rest))}"
