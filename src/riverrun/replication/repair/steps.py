"""Decides the next repair step of a replica that is damaged, or whose disk is full.

    damaged ──REPORT──> lost ──REFETCH──> intact, behind ──RETURN──> back in service
       └── no other replica can lead: it stays in service with its intact records

A lost replica is assigned to a directory that is not online (KIP-858). It does not lead and is
neither in the ISR nor in the ELR. Only then may it be truncated: before that, it could be elected,
or its acknowledgements could count. The state is in the metadata, so it survives a restart.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from riverrun.metadata.image import DIRECTORY_LOST, NO_LEADER, Image, PartitionImage
from riverrun.model.ids import NodeId


class Step(Enum):
    NONE = "none"
    """The replica needs no repair."""
    WAIT = "wait"
    REPORT = "report"
    """Report it to the controller, which takes it out of service."""
    REFETCH = "refetch"
    """Truncate the damaged records and fetch them from the leader."""
    ACCEPT = "accept"
    """The damaged records are truncated already: clear the damage."""
    RETURN = "return"
    """Report to the controller that it is in service again."""


class ReplicaCondition(Struct, frozen=True, kw_only=True):
    """The local state of a replica."""

    is_damaged: bool
    is_truncated: bool = False
    """Whether the damaged records are truncated, so that only the end is missing."""
    lag: int | None = None
    """Committed records that it lacks; None if unknown."""
    is_disk_full: bool = False


def next_step(
    image: Image, state: PartitionImage, node: NodeId, condition: ReplicaCondition
) -> Step:
    is_alone = len(state.replicas) == 1
    if condition.is_damaged:
        if is_alone:
            return Step.WAIT  # Its intact records are the only copy.
        if not is_lost(state, node):
            can_go = state.leader != node or others_can_lead(image, state, node)
            return Step.REPORT if can_go else Step.WAIT
        if node in state.isr or state.leader in (node, NO_LEADER):
            return Step.WAIT
        return Step.ACCEPT if condition.is_truncated else Step.REFETCH
    if not is_lost(state, node):
        return Step.NONE
    is_whole = is_alone or condition.lag == 0
    return Step.RETURN if is_whole and not condition.is_disk_full else Step.WAIT


def should_hand_over(
    image: Image, state: PartitionImage, node: NodeId, *, min_in_sync: int
) -> bool:
    """Whether another replica should lead because the disk here is full.

    Only if enough others are in sync to accept writes. Otherwise writes would still fail, and
    readers would lose an intact replica.
    """
    others = [one for one in state.isr if one != node]
    return (
        state.leader == node and len(others) >= min_in_sync and others_can_lead(image, state, node)
    )


def is_lost(state: PartitionImage, node: NodeId) -> bool:
    return state.directories[state.replicas.index(node)] == DIRECTORY_LOST


def others_can_lead(image: Image, state: PartitionImage, node: NodeId) -> bool:
    return any(
        one != node and image.is_active(one) and not is_lost(state, one) for one in state.isr
    )
