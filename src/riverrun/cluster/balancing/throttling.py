"""The throttle of a plan (KIP-73): entries of topics' lists, and rates of brokers.

Entries are added in the batch that starts their move and removed in the batch that ends it. A rate
is set when a broker first takes part in a move, and restored in the batch that ends the plan. Only
what the plan has added is removed: entries that were there before stay, and a rate that somebody
changed meanwhile stays as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from riverrun.cluster.balancing.plans import plan_record
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.ids import NodeId, TopicName
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import (
    RATE,
    THROTTLED,
    OldRates,
    StoredPlan,
    ThrottledEntries,
    encode,
)

LEADER_LIST: Final = "leader.replication.throttled.replicas"
FOLLOWER_LIST: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
ALL: Final = "*"


def throttle_records(
    image: Image, plan: StoredPlan, *, started: Sequence[PlannedMove], moving: Iterable[PlannedMove]
) -> list[ConfigRecord]:
    """Throttle the moves that start, and remove the entries of those that have ended.

    ``moving`` are the moves that go on, without the started ones.
    """
    started = [move for move in started if move.adding] if plan.header.throttle else []
    added: dict[str, ThrottledEntries] = {}
    for move in started:
        added[move.topic] = _joined(added.get(move.topic), entries_of(move))
    kept: dict[str, ThrottledEntries] = {}
    for move in moving:
        kept[move.topic] = _joined(kept.get(move.topic), entries_of(move))
    records: list[ConfigRecord] = []
    none = ThrottledEntries()
    for topic in dict.fromkeys([*plan.throttled, *added]):
        ours = plan.throttled.get(topic, none)
        still = kept.get(topic, none)
        change = _ListChange(image, topic)
        new = added.get(topic, none)
        after = ThrottledEntries(
            leaders=change.apply(LEADER_LIST, ours.leaders, still.leaders, new.leaders),
            followers=change.apply(FOLLOWER_LIST, ours.followers, still.followers, new.followers),
        )
        records += change.records
        if after != ours:
            text = encode(after) if after.leaders or after.followers else None
            records.append(plan_record(plan.id, f"{THROTTLED}{topic}", text))
    return records + list(_rates_set(image, plan, started))


def entries_of(move: PlannedMove) -> ThrottledEntries:
    """Any replica from before may lead while the new ones copy."""
    return ThrottledEntries(
        leaders=tuple(f"{move.partition}:{node}" for node in move.before),
        followers=tuple(f"{move.partition}:{node}" for node in move.adding),
    )


def removal_of_throttle(
    image: Image, plan: StoredPlan, others: Iterable[StoredPlan]
) -> list[ConfigRecord]:
    """Remove everything that the plan has added to settings. Its own texts are left to the caller.

    ``others`` are the other plans that run. If one of them has replaced our rate, the rate that we
    found is the one that it must restore.
    """
    records: list[ConfigRecord] = []
    for topic, ours in plan.throttled.items():
        change = _ListChange(image, topic)
        change.apply(LEADER_LIST, ours.leaders, (), ())
        change.apply(FOLLOWER_LIST, ours.followers, (), ())
        records += change.records
    running = list(others)
    rate = str(plan.header.throttle)
    for node, old in plan.rates.items():
        heir = next((one for one in running if _replaced(one.rates.get(node), rate)), None)
        if heir is not None:
            records.append(plan_record(heir.id, f"{RATE}{node}", encode(old)))
            continue
        current = image.config(ConfigType.BROKER, str(node))
        for name, text in ((LEADER_RATE, old.leader), (FOLLOWER_RATE, old.follower)):
            if current.get(name) == rate:
                records.append(_broker_record(node, name, text))
    return records


def _replaced(rates: OldRates | None, rate: str) -> bool:
    return rates is not None and rate in (rates.leader, rates.follower)


def _rates_set(
    image: Image, plan: StoredPlan, started: Sequence[PlannedMove]
) -> Iterator[ConfigRecord]:
    nodes = dict.fromkeys(node for move in started for node in (*move.before, *move.adding))
    for node in nodes:
        if node in plan.rates:
            continue
        current = image.config(ConfigType.BROKER, str(node))
        old = OldRates(leader=current.get(LEADER_RATE), follower=current.get(FOLLOWER_RATE))
        yield plan_record(plan.id, f"{RATE}{node}", encode(old))
        yield _broker_record(node, LEADER_RATE, str(plan.header.throttle))
        yield _broker_record(node, FOLLOWER_RATE, str(plan.header.throttle))


class _ListChange:
    """Changes the two lists of one topic. A topic that is gone has no lists to change."""

    def __init__(self, image: Image, topic: str) -> None:
        self.records: list[ConfigRecord] = []
        self._topic = topic
        self._is_there = TopicName(topic) in image.topics_by_name
        self._texts: Mapping[str, str] = image.config(ConfigType.TOPIC, topic)

    def apply(
        self, name: str, ours: Sequence[str], still: Sequence[str], new: Sequence[str]
    ) -> tuple[str, ...]:
        """Remove our entries that are not in ``still``, add new ones; returns our entries now."""
        if not self._is_there:
            return ()
        text = self._texts.get(name, "")
        if text == ALL:
            return ()
        before = dict.fromkeys(entry for entry in text.split(",") if entry)
        kept = dict.fromkeys(still)
        gone = {entry: None for entry in ours if entry not in kept}
        added = [entry for entry in new if entry not in before]
        after = [entry for entry in before if entry not in gone] + added
        if after != list(before):
            self.records.append(
                ConfigRecord(
                    resource_type=ConfigType.TOPIC,
                    resource_name=self._topic,
                    name=name,
                    value=",".join(after) or None,
                )
            )
        return (*[entry for entry in ours if entry in kept and entry in before], *added)


def _joined(one: ThrottledEntries | None, two: ThrottledEntries) -> ThrottledEntries:
    if one is None:
        return two
    return ThrottledEntries(
        leaders=one.leaders + two.leaders, followers=one.followers + two.followers
    )


def _broker_record(node: NodeId, name: str, text: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigType.BROKER, resource_name=str(node), name=name, value=text
    )
