"""Repairs: replicas that must move, whatever it costs.

Replicas leave brokers that are gone or draining, missing replicas get a broker, and partitions that
break the rack rule are mended. Nothing else moves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from riverrun.model.ids import NodeId
from riverrun.placement.planner.board import Board
from riverrun.placement.planner.layout import MISSING

CORDONED_RACK: Final = "the brokers in its rack are cordoned and keep their replicas"


IN_PROGRESS: Final = "a reassignment is in progress"
"""The reason that goes away by itself."""


class Unplaced(NamedTuple):
    """A replica that must move and cannot."""

    topic: str
    partition: int
    broker: NodeId | None
    reason: str


def evacuate(board: Board) -> list[Unplaced]:
    """Move replicas from leaving brokers, and place missing ones. Large ones first: small ones fit
    where large ones no longer do."""
    layout = board.layout
    leaving = [
        slot
        for slot, broker in enumerate(board.replicas)
        if broker == MISSING or board.is_leaving[broker]
    ]
    sizes, partition_of = layout.sizes, layout.partition_of
    leaving.sort(key=lambda slot: (-sizes[partition_of[slot]], slot))
    unplaced: list[Unplaced] = []
    for slot in leaving:
        partition = partition_of[slot]
        if layout.is_pinned[partition]:
            unplaced.append(_unplaced(board, slot, IN_PROGRESS))
            continue
        broker = board.destination(slot)
        if broker is None:
            # The rack rule cannot be kept, for example because a rack is full. More copies are
            # worth more than the rule; a later plan mends it.
            broker = board.destination(slot, any_rack=True)
        if broker is None:
            unplaced.append(_unplaced(board, slot, _why(board, slot)))
        else:
            board.move(slot, broker)
    return unplaced


def _unplaced(board: Board, slot: int, reason: str) -> Unplaced:
    layout = board.layout
    partition = layout.partition_of[slot]
    broker = board.replicas[slot]
    return Unplaced(
        layout.topics[layout.topic_of[partition]],
        layout.numbers[partition],
        None if broker == MISSING else layout.brokers[broker].id,
        reason,
    )


def _why(board: Board, slot: int) -> str:
    layout = board.layout
    held = layout.replicas_of(layout.partition_of[slot])
    free = [broker for broker in board.active if broker not in held]
    if not free:
        return "every active broker holds a replica already; add a broker"
    return "no broker has enough free disk below the ceiling; add disk space or a broker"


def mend_racks(board: Board) -> list[Unplaced]:
    """Move one replica at a time from racks with too many to racks with too few."""
    if not board.has_racks:
        return []
    unplaced: list[Unplaced] = []
    starts, replicas, rack_of = board.layout.starts, board.replicas, board.rack_of
    is_simple = {factor: max(board.rule(factor).low) <= 1 for factor in board.factors}
    for partition in range(board.layout.partitions):
        start, end = starts[partition], starts[partition + 1]
        racks = {rack_of[broker] for broker in replicas[start:end]}
        is_kept = len(racks) == end - start and is_simple[end - start]
        if not is_kept and not board.is_fixed[partition]:
            _mend(board, partition, unplaced)
    return unplaced


def _mend(board: Board, partition: int, unplaced: list[Unplaced]) -> None:
    slots = board.layout.slots(partition)
    rule = board.rule(len(slots))
    for _ in slots:
        held: dict[int, list[int]] = {}
        for slot in slots:
            if board.replicas[slot] != MISSING:
                held.setdefault(board.rack_of[board.replicas[slot]], []).append(slot)
        crowded = [one for rack, one in held.items() if len(one) > rule.high[rack]]
        movable = _movable(board, crowded)
        if not movable and any(len(held.get(rack, ())) < low for rack, low in enumerate(rule.low)):
            crowded = [one for rack, one in held.items() if len(one) > rule.low[rack]]
            movable = _movable(board, crowded)
        if not movable:
            kept = next((one[-1] for one in crowded if len(one) > 1), None)
            if kept is not None and board.is_cordoned[board.replicas[kept]]:
                unplaced.append(_unplaced(board, kept, CORDONED_RACK))
            return
        slot = movable[-1]
        broker = board.destination(slot, not_rack=board.rack_of[board.replicas[slot]])
        if broker is None:
            unplaced.append(_unplaced(board, slot, "no broker of another rack has space"))
            return
        board.move(slot, broker)


def _movable(board: Board, crowded: list[list[int]]) -> list[int]:
    """The replicas of the most crowded rack that may move: the last one, so that the leader stays.

    A cordoned broker keeps its replicas, and a fenced one may come back.
    """
    active = [[slot for slot in one if board.is_active[board.replicas[slot]]] for one in crowded]
    found = [(len(one), movable) for one, movable in zip(crowded, active, strict=True) if movable]
    return max(found, key=lambda one: one[0])[1] if found else []
