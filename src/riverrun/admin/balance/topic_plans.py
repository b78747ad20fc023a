"""Plans for one topic: given replicas, even load, or another replication factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from riverrun.admin.balance.cluster_state import ClusterView, PartitionState, layout_of
from riverrun.admin.balance.planning import plan_of
from riverrun.admin.broker_settings import DECOMMISSIONING
from riverrun.admin.requests import NotFound
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import PlacementBroker
from riverrun.placement.planner.plan import Goal, Plan, PlannedMove, Purpose, make_plan
from riverrun.placement.planner.resizing import kept_replicas

Target = Callable[[PartitionState], tuple[int, ...]]


def partitions_of(
    state: ClusterView, topic: str, indexes: frozenset[int] | None = None
) -> list[PartitionState]:
    """The partitions of a topic. Raises ``NotFound`` for unknown ones and an error for moving
    ones."""
    found = [one for one in state.partitions if one.at.topic == topic]
    if not found:
        raise NotFound(f"there is no topic {topic}; `riverrun topics list` lists all")
    known = {int(one.at.partition): one for one in found}
    for index in sorted(indexes or ()):
        if index not in known:
            raise NotFound(f"topic {topic} has no partition {index}")
    wanted = found if indexes is None else [known[index] for index in sorted(indexes)]
    moving = [str(one.at) for one in wanted if one.is_moving]
    if moving:
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"{', '.join(moving)}: a move is in progress; wait for it, or cancel it with "
            f"`riverrun cluster moves cancel {topic}`",
        )
    return wanted


def targets_plan(
    state: ClusterView, topic: str, indexes: frozenset[int] | None, target: Target
) -> Plan:
    """Move partitions to given replicas."""
    moves = [
        _move(state, one, target(one), Goal.REQUEST)
        for one in partitions_of(state, topic, indexes)
        if target(one) != one.replicas
    ]
    return _plan(state, moves)


def move_plan(
    state: ClusterView, topic: str, indexes: frozenset[int] | None, nodes: tuple[int, ...]
) -> Plan:
    """Move partitions to these nodes; raises ``NotFound``, or an error if a node is emptied."""
    for node in nodes:
        if state.broker(node).mode == DECOMMISSIONING:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"node {node} is being decommissioned"
            )
    return targets_plan(state, topic, indexes, lambda _: nodes)


def rebalance_plan(state: ClusterView, topic: str) -> Plan:
    """Even the load of one topic as if it were the only one."""
    only = replace(state, partitions=partitions_of(state, topic))
    return plan_of(only)


def resize_plan(state: ClusterView, topic: str, replicas: int) -> Plan:
    """Give every partition of a topic this many replicas."""
    partitions = partitions_of(state, topic)
    active = [one for one in state.brokers.values() if not one.is_fenced]
    if replicas > len(active):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replicas} replicas need {replicas} nodes, and {len(active)} are up",
        )
    larger = [one for one in partitions if len(one.replicas) < replicas]
    smaller = [one for one in partitions if len(one.replicas) > replicas]
    moves = []
    if larger:
        grown = {one.at for one in larger}
        plan = plan_of(state, Purpose.REPAIR, resized={topic: replicas})
        moves += [
            move
            for move in plan.moves
            if move.topic == topic and any(at.partition == move.partition for at in grown)
        ]
        missing = [one for one in plan.unplaced if one.topic == topic]
        if missing:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{topic}-{missing[0].partition}: {missing[0].reason}",
            )
    brokers = layout_of(state).brokers
    moves += [_move(state, one, _kept(brokers, one, replicas), Goal.RESIZE) for one in smaller]
    return _plan(state, moves)


def _kept(
    brokers: list[PlacementBroker], partition: PartitionState, replicas: int
) -> tuple[int, ...]:
    return kept_replicas(
        brokers,
        [NodeId(node) for node in partition.replicas],
        leader=None if partition.leader is None else NodeId(partition.leader),
        in_sync=[NodeId(node) for node in partition.in_sync],
        replication_factor=replicas,
    )


def _move(
    state: ClusterView, partition: PartitionState, target: tuple[int, ...], goal: Goal
) -> PlannedMove:
    return PlannedMove(
        topic=partition.at.topic,
        partition=partition.at.partition,
        before=tuple(NodeId(node) for node in partition.replicas),
        after=tuple(NodeId(node) for node in target),
        leader=None if partition.leader is None else NodeId(partition.leader),
        goal=goal,
        size_bytes=float(state.size_bytes(partition)),
        bytes_in=state.bytes_in(partition) or 0.0,
    )


def _plan(state: ClusterView, moves: list[PlannedMove]) -> Plan:
    """A plan that a person chose: its figures are those of the cluster after it."""
    before = make_plan(layout_of(state), Purpose.LEADERS).before
    targets = {(move.topic, move.partition): move.after for move in moves}
    partitions = [
        replace(one, replicas=tuple(targets.get((one.at.topic, one.at.partition), one.replicas)))
        for one in state.partitions
    ]
    after = make_plan(layout_of(replace(state, partitions=partitions)), Purpose.LEADERS).before
    return Plan(
        purpose=Purpose.BALANCE, moves=tuple(moves), unplaced=(), before=before, after=after
    )
