"""What to do next about a replica that is damaged, or whose disk has no room.

    damaged ──REPORT──> lost to the cluster ──REFETCH──> sound, behind ──RETURN──> in sync
       └── nobody else can lead: it goes on, as far as it is sound

Lost means assigned to a directory that is not online (KIP-858): others lead, and it is neither in
sync nor eligible. Only then may it be cut, for until then it could be elected, or be counted on for
what it acknowledged. That state lies in the metadata, so a restart in between changes nothing.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from riverrun.metadata.image import DIRECTORY_LOST, NO_LEADER, Image, PartitionImage
from riverrun.model.ids import NodeId


class Step(Enum):
    NONE = "none"
    """It is as it should be."""
    WAIT = "wait"
    REPORT = "report"
    """Let the controller take it out of service."""
    REFETCH = "refetch"
    """Cut what is damaged, and fetch it from the leader."""
    ACCEPT = "accept"
    """The damaged part is gone already: what is left can be believed."""
    RETURN = "return"
    """Let the controller know that it can be counted on again."""


class ReplicaCondition(Struct, frozen=True, kw_only=True):
    """A replica as its own node knows it."""

    is_damaged: bool
    is_cut: bool = False
    """Whether the damage was cut away, and only the end is missing."""
    lag: int | None = None
    """Committed records that it lacks, if that is known."""
    is_disk_full: bool = False


def next_step(
    image: Image, state: PartitionImage, node: NodeId, condition: ReplicaCondition
) -> Step:
    is_alone = len(state.replicas) == 1
    if condition.is_damaged:
        if is_alone:
            return Step.WAIT  # what is sound of it is all that there is
        if not is_lost(state, node):
            can_go = state.leader != node or others_can_lead(image, state, node)
            return Step.REPORT if can_go else Step.WAIT
        if node in state.isr or state.leader in (node, NO_LEADER):
            return Step.WAIT
        return Step.ACCEPT if condition.is_cut else Step.REFETCH
    if not is_lost(state, node):
        return Step.NONE
    is_whole = is_alone or condition.lag == 0
    return Step.RETURN if is_whole and not condition.is_disk_full else Step.WAIT


def should_hand_over(
    image: Image, state: PartitionImage, node: NodeId, *, min_in_sync: int
) -> bool:
    """Whether others can take what we lead and can write nothing to.

    Only if enough of them are in sync to accept writes: else it would help nobody, and who reads
    would lose a replica that is sound.
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
