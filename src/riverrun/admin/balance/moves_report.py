"""Moves in progress: bytes copied, rate, and the time that is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from riverrun.admin.balance.cluster_state import PartitionState, ask_partitions
from riverrun.admin.cluster.log_dirs import ask_directories
from riverrun.admin.tables import ByteCount, Cell, Table
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition

SAMPLE_SECONDS = 1.0
SAMPLES_MAX = 5
"""A throttled replica gets a fetch of up to 1 MiB every few seconds, so a single second often sees
nothing."""


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
    is_copying: bool = True
    """Whether bytes arrived while the rate was measured."""

    @property
    def bytes_left(self) -> int:
        return max(self.bytes_total - self.bytes_done, 0)

    @property
    def seconds_left(self) -> float | None:
        return self.bytes_left / self.rate if self.rate is not None and self.rate > 0 else None

    @property
    def outlook(self) -> str:
        if not self.bytes_left:
            return "about to end"
        if self.rate is None:
            return "unknown"
        if not self.is_copying:
            return f"nothing copied for {SAMPLES_MAX * SAMPLE_SECONDS:.0f} s"
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


async def ask_moves(pool: ConnectionPool, *, with_rates: bool) -> list[MoveProgress]:
    """The moves in progress. Rates need two looks, a second apart, or more until bytes arrive."""
    first, at = await look(pool), time.monotonic()
    if not with_rates or not first:
        return first
    before = {one.at: one for one in first}
    for _ in range(SAMPLES_MAX):
        await asyncio.sleep(SAMPLE_SECONDS)
        now = await look(pool)
        if any(one.at not in before or _is_copying(before[one.at], one) for one in now) or not now:
            break
    return with_rates_since(first, now, time.monotonic() - at)


def with_rates_since(
    earlier: Sequence[MoveProgress], now: Sequence[MoveProgress], seconds: float
) -> list[MoveProgress]:
    """The moves of a look with their rates since an earlier look."""
    before = {one.at: one for one in earlier}
    return [
        replace(
            one,
            rate=(before[one.at].bytes_left - one.bytes_left) / seconds,
            is_copying=_is_copying(before[one.at], one),
        )
        if one.at in before
        else one
        for one in now
    ]


async def ask_copy_rate(pool: ConnectionPool) -> float | None:
    """The rate at which the busiest broker receives copies now; None if nothing is copied."""
    received: dict[int, float] = {}
    for move in await ask_moves(pool, with_rates=True):
        for node in move.adding if move.rate is not None and move.rate > 0 else ():
            received[node] = received.get(node, 0.0) + (move.rate or 0.0) / len(move.adding)
    return max(received.values(), default=None)


def _is_copying(before: MoveProgress, now: MoveProgress) -> bool:
    return now.bytes_done > before.bytes_done or not now.bytes_left


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
