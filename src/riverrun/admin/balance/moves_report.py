"""Moves in progress: bytes copied, rate, and the time that is left."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from riverrun.admin.balance.cluster_state import PartitionState, ask_partitions
from riverrun.admin.cluster.log_dirs import ask_directories
from riverrun.admin.tables import ByteCount, Cell, Table
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition

SAMPLE_SECONDS = 1.0
SAMPLES_MAX = 5
"""A throttled replica gets a fetch of up to 1 MiB every few seconds, so a single second often sees
nothing."""
SMOOTHING_SECONDS: Final = 30.0
"""What came longer ago counts for less than a third. Copies and writes come in bursts, so the rate
of a few seconds jumps, and with it the time that is left."""
GAP_SECONDS_MIN: Final = 0.9
"""Two looks that are closer do not give a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """The new replicas of one partition. Rates are None if unknown."""

    at: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    bytes_done: int
    bytes_total: int
    rate: float | None = None
    """Bytes per second by which the missing part shrinks; producers may write meanwhile."""
    idle_seconds: float = 0.0
    """How long no bytes have arrived, as far as it was observed."""

    @property
    def bytes_left(self) -> int:
        return max(self.bytes_total - self.bytes_done, 0)

    @property
    def seconds_left(self) -> float | None:
        if not self.bytes_left:
            return 0.0
        return self.bytes_left / self.rate if self.rate is not None and self.rate > 0 else None

    @property
    def outlook(self) -> str:
        if not self.bytes_left:
            return "about to end"
        if self.rate is None:
            return "unknown"
        if self.idle_seconds >= SAMPLES_MAX * SAMPLE_SECONDS:
            return f"nothing copied for {self.idle_seconds:.0f} s"
        if self.rate <= 0:
            return "will not finish at this rate"
        return f"about {self.seconds_left:.0f} s"

    def described(self) -> dict[str, object]:
        return {
            "topic": self.at.topic, "partition": self.at.partition,
            "replicas": list(self.replicas), "adding": list(self.adding),
            "removing": list(self.removing),
            "bytes_done": self.bytes_done, "bytes_total": self.bytes_total,
            "bytes_per_second": self.rate, "seconds_left": self.seconds_left,
            "outlook": self.outlook,
        }  # fmt: skip


class MoveRates:
    """The rates of moves, from repeated looks. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[TopicPartition, tuple[int, ...]], _MoveRate] = {}

    def add(self, moves: Sequence[MoveProgress], now: float) -> list[MoveProgress]:
        """The moves of a look with their rates, which are None at the first look."""
        known = self._known
        self._known = {
            (one.at, one.adding): known.get((one.at, one.adding)) or _MoveRate(one, now)
            for one in moves
        }
        return [self._known[one.at, one.adding].add(one, now) for one in moves]


class _MoveRate:
    """An exponentially weighted mean over time of the rate of one move."""

    def __init__(self, move: MoveProgress, now: float) -> None:
        self._at = self._copied_at = now
        self._bytes_left = move.bytes_left
        self._bytes_done = move.bytes_done
        self._bytes = self._seconds = 0.0
        """Weighted sums: how much the missing part shrank, and in which time."""

    def add(self, move: MoveProgress, now: float) -> MoveProgress:
        if move.bytes_done > self._bytes_done:
            self._copied_at = now
        self._bytes_done = move.bytes_done
        elapsed = now - self._at
        if elapsed >= GAP_SECONDS_MIN:
            kept = math.exp(-elapsed / SMOOTHING_SECONDS)
            weight = SMOOTHING_SECONDS * (1 - kept)
            rate = (self._bytes_left - move.bytes_left) / elapsed
            self._bytes = self._bytes * kept + rate * weight
            self._seconds = self._seconds * kept + weight
            self._at, self._bytes_left = now, move.bytes_left
        return replace(
            move,
            rate=self._bytes / self._seconds if self._seconds else None,
            idle_seconds=now - self._copied_at if move.bytes_left else 0.0,
        )


async def ask_moves(pool: ConnectionPool, rates: MoveRates) -> list[MoveProgress]:
    """The moves in progress with their rates. New moves need two looks, a second apart, or more
    until bytes arrive."""
    found = rates.add(await look(pool), time.monotonic())
    if all(one.rate is not None for one in found):
        return found
    for _ in range(SAMPLES_MAX):
        await asyncio.sleep(SAMPLE_SECONDS)
        now = time.monotonic()
        before = {one.at for one in found}
        found = rates.add(await look(pool), now)
        if not found or any(one.at not in before or not one.idle_seconds for one in found):
            break
    return found


async def ask_copy_rate(pool: ConnectionPool) -> float | None:
    """The rate at which the busiest broker receives copies now; None if nothing is copied."""
    received: dict[int, float] = {}
    for move in await ask_moves(pool, MoveRates()):
        for node in move.adding if move.rate is not None and move.rate > 0 else ():
            received[node] = received.get(node, 0.0) + (move.rate or 0.0) / len(move.adding)
    return max(received.values(), default=None)


async def look(pool: ConnectionPool) -> list[MoveProgress]:
    """The moves in progress, without rates."""
    moving = [one for one in await ask_partitions(pool) if one.is_moving]
    if not moving:
        return []
    sizes = {
        (row.node, at): size
        for row in await ask_directories(pool)
        for at, size in row.sizes.items()
    }
    return [_progress(one, sizes) for one in moving]


def _progress(
    partition: PartitionState, sizes: dict[tuple[int, TopicPartition], int]
) -> MoveProgress:
    held = [
        sizes.get((node, partition.at), 0)
        for node in partition.replicas
        if node not in partition.adding
    ]
    whole = max(held, default=0)
    if partition.leader is not None:
        whole = sizes.get((partition.leader, partition.at), whole)
    done = [min(sizes.get((node, partition.at), 0), whole) for node in partition.adding]
    return MoveProgress(
        at=partition.at,
        replicas=partition.replicas,
        adding=partition.adding,
        removing=partition.removing,
        bytes_done=sum(done),
        bytes_total=whole * len(partition.adding),
    )


def progress_table(moves: Sequence[MoveProgress]) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            move.at.topic, move.at.partition, _joined(move.adding), _joined(move.removing),
            ByteCount(move.bytes_done), ByteCount(move.bytes_total),
            None if move.rate is None else ByteCount(max(move.rate, 0)), move.outlook,
        )
        for move in moves
    ]  # fmt: skip
    return Table(
        columns=(
            "topic", "partition", "adding", "removing", "copied", "total", "bytes/s", "time left",
        ),
        rows=rows,
        kind="move",
        empty="No partition is being moved. `riverrun cluster balance` plans moves.",
    )  # fmt: skip


def _joined(nodes: Sequence[int]) -> str | None:
    return ",".join(str(node) for node in nodes) or None
