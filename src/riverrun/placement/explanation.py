"""Why new replicas go where they go, in values that a command can print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker, PlacementPolicy, Scores
from riverrun.placement.new_partitions import Choice, Placement, place

NOTED_LOAD: Final = 1.1
"""A resource is named if it decides, and the broker has so much more of it than the mean."""


class ExplainedReplica(Struct, frozen=True, kw_only=True):
    broker: NodeId
    is_leader: bool
    reason: str


class BrokerChange(Struct, frozen=True, kw_only=True):
    """Replicas and leaders of one broker before and after."""

    broker: NodeId
    rack: str | None
    availability: Availability
    replicas_before: int
    replicas_after: int
    leaders_before: int
    leaders_after: int
    bytes_in: float | None
    bytes_out: float | None
    """Measured bytes per second; None if they are not known."""
    note: str


class PlacementExplanation(Struct, frozen=True, kw_only=True):
    policy: PlacementPolicy
    partitions: tuple[tuple[ExplainedReplica, ...], ...]
    brokers: tuple[BrokerChange, ...]


def explain(
    brokers: Sequence[PlacementBroker],
    *,
    partitions: int,
    replicas: int,
    policy: PlacementPolicy,
    seed: int,
    existing: Sequence[Sequence[NodeId]] = (),
) -> PlacementExplanation:
    """Place new partitions as ``place`` does, with the reasons."""
    placement = place(
        brokers,
        partitions=partitions,
        replicas=replicas,
        policy=policy,
        seed=seed,
        existing=existing,
    )
    known = {one.id: one for one in brokers}
    return PlacementExplanation(
        policy=policy,
        partitions=tuple(
            tuple(
                ExplainedReplica(
                    broker=choice.broker,
                    is_leader=at == 0,
                    reason=_reason(policy, known[choice.broker], choice, is_leader=at == 0),
                )
                for at, choice in enumerate(choices)
            )
            for choices in placement.choices
        ),
        brokers=_changes(brokers, placement, policy),
    )


def _reason(
    policy: PlacementPolicy, broker: PlacementBroker, choice: Choice, *, is_leader: bool
) -> str:
    if policy is PlacementPolicy.RANGE:
        return "next in order of ids"
    parts: list[str] = []
    if is_leader:
        parts.append("fewest leaders among its replicas")
    if broker.availability is Availability.FENCED:
        parts.append("fenced, but there are too few other brokers")
    if broker.rack is not None:
        kind = "new rack" if choice.is_new_rack else "rack used again"
        parts.append(f"{kind} {broker.rack}")
    parts.append(f"{choice.topic_replicas} replicas of the topic")
    parts.append(f"load {choice.score:.2f} of the mean")
    return ", ".join(parts)


def _changes(
    brokers: Sequence[PlacementBroker], placement: Placement, policy: PlacementPolicy
) -> tuple[BrokerChange, ...]:
    replicas = Counter(node for nodes in placement.assignments for node in nodes)
    leaders = Counter(nodes[0] for nodes in placement.assignments)
    scores = Scores(brokers, 0, with_resources=policy is PlacementPolicy.RESOURCE_AWARE)
    return tuple(
        BrokerChange(
            broker=one.id,
            rack=one.rack,
            availability=one.availability,
            replicas_before=one.replicas,
            replicas_after=one.replicas + replicas[one.id],
            leaders_before=one.leaders,
            leaders_after=one.leaders + leaders[one.id],
            bytes_in=None if one.load is None else one.load.bytes_in,
            bytes_out=None if one.load is None else one.load.bytes_out,
            note=_note(one, scores, at),
        )
        for at, one in sorted(enumerate(brokers), key=lambda pair: pair[1].id)
    )


def _note(broker: PlacementBroker, scores: Scores, index: int) -> str:
    match broker.availability:
        case Availability.ACTIVE:
            if scores.is_full[index]:
                return "disk is nearly full: used only where a rack requires it"
            scarcest = scores.scarcest(index)
            if scarcest is None or scarcest[1] < NOTED_LOAD:
                return ""
            name, load = scarcest
            return f"{name} decides: {load:.2f} of the mean"
        case Availability.FENCED:
            return "fenced: used only if there are too few others, never leads"
        case Availability.CORDONED:
            return "cordoned: gets no new replicas"
        case Availability.DRAINING:
            return "draining: gets no new replicas"
        case Availability.GONE:
            return "gone: gets no new replicas"
