"""Plans: what to move, why, how much it copies, and how even the cluster is before and after.

A plan is a function of its layout: the same input gives the same plan. It moves as little as its
purpose allows:

| purpose | moves |
|---|---|
| ``BALANCE`` | repairs, then even counts, bytes, leaders; a new broker takes its share |
| ``REPAIR`` | replicas of gone and draining brokers, missing replicas, broken rack rules |
| ``LEADERS`` | nothing: replicas are reordered so that leaders, bytes out and heirs are even |
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from enum import IntEnum, StrEnum

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import DISK_CEILING, Availability
from riverrun.placement.planner.board import Board
from riverrun.placement.planner.bytes_out import BytesOutEvener
from riverrun.placement.planner.evacuation import Unplaced, evacuate, mend_racks
from riverrun.placement.planner.fairness import BalanceFigures, measure
from riverrun.placement.planner.heirs import HeirPlan
from riverrun.placement.planner.layout import MISSING, ClusterLayout
from riverrun.placement.planner.leadership import LeaderPlan
from riverrun.placement.planner.resources import ResourceEvener, bytes_in_of, disk_of
from riverrun.placement.planner.spreading import Spreader


class Purpose(StrEnum):
    BALANCE = "balance"
    REPAIR = "repair"
    LEADERS = "leaders"


class Goal(IntEnum):
    """Why a partition changes, the most urgent first. Stored plans contain the numbers."""

    REPAIR = 1
    DRAIN = 2
    RESIZE = 3
    RACKS = 4
    REPLICAS = 5
    DISK = 6
    BYTES_IN = 7
    LEADERS = 8
    REQUEST = 9
    """A person chose the replicas."""
    HEIRS = 10
    """The loss of a broker would give its leaderships to too few others."""
    BYTES_OUT = 11
    """By other leaders, after their counts are even."""


class PlannedMove(Struct, frozen=True, kw_only=True):
    """A partition's replicas before and after, the preferred leader first."""

    topic: str
    partition: int
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]
    leader: NodeId | None
    """The current leader, which new replicas copy from."""
    goal: Goal
    size_bytes: float
    bytes_in: float
    """Write rate: a new replica catches up only if it copies faster than this."""

    @property
    def adding(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removing(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self.before if node not in self.after)

    @property
    def bytes_to_copy(self) -> float:
        return self.size_bytes * len(self.adding)

    @property
    def reason(self) -> str:
        """One clause for people."""
        gone = ", ".join(str(node) for node in self.removing)
        match self.goal:
            case Goal.REPAIR:
                return f"broker {gone} is gone"
            case Goal.DRAIN:
                return f"broker {gone} is draining"
            case Goal.RESIZE:
                return f"replication factor {len(self.before)} becomes {len(self.after)}"
            case Goal.RACKS:
                return "too many replicas in one rack"
            case Goal.REPLICAS:
                return f"broker {gone} holds more replicas than its share"
            case Goal.DISK:
                return "evens disk use"
            case Goal.BYTES_IN:
                return "evens bytes in"
            case Goal.BYTES_OUT:
                return "evens bytes out"
            case Goal.LEADERS:
                return f"broker {self.before[0]} leads more than its share"
            case Goal.REQUEST:
                return "requested"
            case Goal.HEIRS:
                return f"too few brokers would take over from broker {self.before[0]}"


class Plan(Struct, frozen=True, kw_only=True):
    """Moves in the order to run them: repairs first, then small ones; reordered ones last."""

    purpose: Purpose
    moves: tuple[PlannedMove, ...]
    unplaced: tuple[Unplaced, ...]
    before: BalanceFigures
    after: BalanceFigures

    @property
    def bytes_to_copy(self) -> float:
        return sum(move.bytes_to_copy for move in self.moves)

    @property
    def replicas_moved(self) -> int:
        return sum(len(move.adding) for move in self.moves)

    @property
    def leaders_changed(self) -> int:
        return sum(move.before[0] != move.after[0] for move in self.moves)


def make_plan(
    layout: ClusterLayout,
    purpose: Purpose = Purpose.BALANCE,
    *,
    disk_ceiling: float = DISK_CEILING,
    not_leading: Collection[NodeId] = (),
) -> Plan:
    """Plan moves. Brokers in ``not_leading`` (in maintenance) lead nothing in the result."""
    board = Board(layout, disk_ceiling=disk_ceiling)
    unplaced: list[Unplaced] = []
    if purpose is not Purpose.LEADERS:
        unplaced += evacuate(board)
        Spreader(board, only_moved=True).spread()
        board.goal = Goal.RACKS
        unplaced += mend_racks(board)
    if purpose is Purpose.BALANCE:
        board.goal = Goal.REPLICAS
        Spreader(board).spread()
        disk = disk_of(board)
        board.goal = Goal.DISK
        ResourceEvener(board, disk).run()
        if layout.has_rates:
            board.goal = Goal.BYTES_IN
            ResourceEvener(board, bytes_in_of(board), kept=(disk,)).run()
    excluded = [layout.index_of[node] for node in not_leading if node in layout.index_of]
    leaders = LeaderPlan(board, not_leading=excluded)
    if purpose is not Purpose.REPAIR:
        leaders.spread()
        if layout.has_rates:
            BytesOutEvener(board, leaders).run()
    heirs = HeirPlan(board, leaders)
    heirs.spread(reorder_others=purpose is not Purpose.REPAIR)
    preferred = array("i", [layout.replicas[start] for start in layout.starts[:-1]])
    return Plan(
        purpose=purpose,
        moves=tuple(_moves(board, leaders, heirs)),
        unplaced=tuple(unplaced),
        before=measure(layout, layout.replicas, preferred, board.before),
        after=measure(layout, board.replicas, leaders.leaders, board.now),
    )


def _moves(board: Board, leaders: LeaderPlan, heirs: HeirPlan) -> list[PlannedMove]:
    """Repairs first, then moves by size, then those that only reorder replicas."""
    layout, replicas = board.layout, board.replicas
    starts, ids = layout.starts, [one.id for one in layout.brokers]
    copying: list[tuple[bool, float, int, PlannedMove]] = []
    reordering: list[PlannedMove] = []
    for partition, leader in enumerate(leaders.leaders):
        start, end = starts[partition], starts[partition + 1]
        before, after = layout.replicas[start:end], replicas[start:end]
        is_same = before == after
        is_led_as_before = leader in (MISSING, after[0])
        heir = heirs.heirs.get(partition, MISSING)
        if (is_same and is_led_as_before and heir == MISSING) or layout.is_pinned[partition]:
            continue
        ordered = after.tolist()
        for broker in (heir, leader):
            if broker != MISSING:
                ordered.remove(broker)
                ordered.insert(0, broker)
        current = layout.leaders[partition]
        if not is_same:
            goal = _goal(board, start, end)
        elif is_led_as_before:
            goal = Goal.HEIRS
        else:
            is_for_bytes = partition in leaders.passed_for_bytes_out
            goal = Goal.BYTES_OUT if is_for_bytes else Goal.LEADERS
        move = PlannedMove(
            topic=layout.topics[layout.topic_of[partition]],
            partition=layout.numbers[partition],
            before=tuple([ids[one] for one in before if one != MISSING]),
            after=tuple([ids[one] for one in ordered if one != MISSING]),
            leader=None if current == MISSING else ids[current],
            goal=goal,
            size_bytes=layout.sizes[partition],
            bytes_in=layout.bytes_in[partition] if layout.has_rates else 0.0,
        )
        if is_same:
            reordering.append(move)
        else:
            copying.append((goal is not Goal.REPAIR, move.bytes_to_copy, partition, move))
    copying.sort(key=lambda one: one[:3])
    return [move for *_, move in copying] + reordering


def _goal(board: Board, start: int, end: int) -> Goal:
    """The most urgent reason of a partition's changes."""
    layout = board.layout
    found = Goal.LEADERS
    for slot in range(start, end):
        before = layout.replicas[slot]
        if before == board.replicas[slot]:
            continue
        if before == MISSING:
            goal = Goal.RESIZE
        elif layout.brokers[before].availability is Availability.GONE:
            goal = Goal.REPAIR
        elif layout.brokers[before].availability is Availability.DRAINING:
            goal = Goal.DRAIN
        else:
            goal = Goal(board.goals[slot])
        found = min(found, goal)
    return found
