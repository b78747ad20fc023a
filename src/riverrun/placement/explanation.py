"""Why new replicas go where they go, in values that a command can print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker, PlacementPolicy, Scores
from riverrun.placement.new_partitions import Choice, Placement, place


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
    full = Scores(brokers, 0, with_resources=policy is PlacementPolicy.RESOURCE_AWARE).is_full
    return tuple(
        BrokerChange(
            broker=one.id,
            rack=one.rack,
            availability=one.availability,
            replicas_before=one.replicas,
            replicas_after=one.replicas + replicas[one.id],
            leaders_before=one.leaders,
            leaders_after=one.leaders + leaders[one.id],
            note=_note(one, is_full=is_full),
        )
        for one, is_full in sorted(zip(brokers, full, strict=True), key=lambda pair: pair[0].id)
    )


def _note(broker: PlacementBroker, *, is_full: bool) -> str:
    match broker.availability:
        case Availability.ACTIVE:
            return "disk is nearly full: used only where a rack requires it" if is_full else ""
        case Availability.FENCED:
            return "fenced: used only if there are too few others, never leads"
        case Availability.CORDONED:
            return "cordoned: gets no new replicas"
        case Availability.DRAINING:
            return "draining: gets no new replicas"
        case Availability.GONE:
            return "gone: gets no new replicas"
