"""Faults as data: kind, start, duration, target and amount.

A schedule is drawn from the seed, printed when a run fails, shrunk, and kept in tests. A target is
a machine, several machines (``node-1,node-2``), or the two sides of a network partition
(``node-1|node-2,node-3``). Without a second side it means all other machines. In a cluster a target
may also be a role, resolved when the fault starts: the active ``controller``, the ``leader`` of the
first partition, the ``follower`` that comes first in its replicas, or the ``other-follower``,
the ``coordinator`` of transactions, and the ``group-coordinator`` of groups.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """The comment after a kind is the unit of ``amount``."""

    KILL = "kill"
    KILL_AT_OPERATION = "kill-at-operation"  # disk operations after the start of the fault
    POWER_LOSS = "power-loss"
    POWER_LOSS_AT_OPERATION = "power-loss-at-operation"  # disk operations
    TERMINATE = "terminate"
    PAUSE = "pause"
    DISK_FULL = "disk-full"  # free bytes
    SYNC_ERROR = "sync-error"  # failing syncs
    WRITE_ERROR = "write-error"  # failing writes
    SLOW_DISK = "slow-disk"  # slowdown factor
    EVICT = "evict"
    PARTITION = "partition"
    CUT_REQUESTS = "cut-requests"
    CUT_RESPONSES = "cut-responses"
    RESET = "reset"
    SLOW_LINK = "slow-link"  # slowdown factor
    CLOCK_JUMP = "clock-jump"  # seconds
    KILL_CLIENT = "kill-client"
    PAUSE_CLIENT = "pause-client"
    WIPE_DISK = "wipe-disk"
    LOST_TAIL = "lost-tail"  # bytes removed from the end of the metadata log
    BIT_ROT = "bit-rot"  # a number that selects the bit


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
"""Faults that a cluster survives and a single node does not."""
CONTROLLER, LEADER, FOLLOWER, OTHER_FOLLOWER = "controller", "leader", "follower", "other-follower"
ROLES = (CONTROLLER, LEADER, FOLLOWER, OTHER_FOLLOWER)
COORDINATOR = "coordinator"
"""The coordinator of the first transactional ids; a role only in runs with transactions."""
GROUP_COORDINATOR = "group-coordinator"
"""The coordinator of the first group of the consumer protocol; a role only in runs with groups."""
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
        """Parse the output of ``str``."""
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
    rng: random.Random, *, until: float, broker: str, clients: Sequence[str], count_max: int
) -> tuple[Fault, ...]:
    """Draw a schedule for one node. The possible kinds are drawn first, so that runs differ."""
    alone = [kind for kind in FaultKind if kind not in ON_CLUSTERS]
    kinds = [kind for kind in alone if rng.random() < 0.5] or [FaultKind.KILL]
    faults = []
    for _ in range(rng.randint(1, count_max)):
        kind = rng.choice(kinds)
        low, high = _AMOUNTS.get(kind, (0, 0))
        fault = Fault(
            kind=kind,
            start=round(rng.uniform(0.5, until), 3),
            seconds=round(rng.uniform(0.05, _SECONDS_MAX.get(kind, SECONDS_MAX)), 3),
            target=rng.choice(clients) if kind in ON_CLIENTS else broker,
            amount=float(round(rng.uniform(low, high))),
        )
        faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.start))


def draw_cluster_faults(
    rng: random.Random,
    *,
    until: float,
    nodes: Sequence[str],
    clients: Sequence[str],
    count_max: int,
    kinds: Sequence[FaultKind] = tuple(FaultKind),
    roles: Sequence[str] = ROLES,
) -> tuple[Fault, ...]:
    """Draw a schedule for several nodes. Some faults hit several nodes at once."""
    chosen = [kind for kind in kinds if rng.random() < 0.4] or [FaultKind.KILL]
    faults: list[Fault] = []
    for _ in range(rng.randint(1, count_max)):
        kind = rng.choice(chosen)
        low, high = _AMOUNTS.get(kind, (0, 0))
        fault = Fault(
            kind=kind,
            start=round(rng.uniform(0.5, until), 3),
            seconds=round(rng.uniform(0.05, _SECONDS_MAX.get(kind, SECONDS_MAX)), 3),
            target=_draw_target(rng, kind, nodes, clients, roles),
            amount=float(round(rng.uniform(low, high))),
        )
        faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.start))


def _draw_target(
    rng: random.Random,
    kind: FaultKind,
    nodes: Sequence[str],
    clients: Sequence[str],
    roles: Sequence[str],
) -> str:
    if kind in (FaultKind.KILL_CLIENT, FaultKind.PAUSE_CLIENT):
        return rng.choice(clients)
    if kind in ON_CLIENTS:
        return _draw_sides(rng, nodes, clients, roles)
    if kind in SEVERAL_AT_ONCE and rng.random() < 0.3:
        return ",".join(sorted(rng.sample(nodes, rng.randint(1, len(nodes)))))
    return rng.choice(roles) if rng.random() < 0.4 else rng.choice(nodes)


def _draw_sides(
    rng: random.Random, nodes: Sequence[str], clients: Sequence[str], roles: Sequence[str]
) -> str:
    """Separate a machine from all others, a client from a node, or two groups of nodes."""
    style = rng.randrange(4)
    if style == 0 or len(nodes) == 1:
        return rng.choice([*nodes, *roles, *clients])
    if style == 1:
        return f"{rng.choice(clients)}|{rng.choice(nodes)}"
    shuffled = rng.sample(nodes, len(nodes))
    border = 1 if style == 2 else rng.randint(1, len(nodes) - 1)
    rest = shuffled[border:] if style == 3 else shuffled[border : border + 1]
    return f"{','.join(sorted(shuffled[:border]))}|{','.join(sorted(rest))}"
