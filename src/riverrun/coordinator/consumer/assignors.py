"""Server-side assignors: ``uniform`` and ``range``.

Both take the members with their subscriptions and former targets, and the partition counts of the
topics, and return the partitions of each member. The result depends on these values only, so a
retry or another coordinator computes the same.

* ``uniform``: balance first, then as few moves as possible. If all members subscribe to the same
  topics, their counts differ by at most one. Otherwise no move of one partition between two
  subscribers improves the balance.
* ``range``: consecutive partitions of each topic. Topics with the same subscribers and the same
  number of partitions are co-partitioned. Stickiness follows from the fixed order of the members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from riverrun.coordinator.consumer.records import TopicSlot

BALANCING_ROUNDS_MAX: Final = 32
"""Passes over all topics. Each pass at least halves the imbalance in practice."""


class AssignedMember(Struct, frozen=True, kw_only=True):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: tuple[UUID, ...]
    """Topics that exist, in a fixed order."""
    former: tuple[TopicSlot, ...]


Counts = Mapping[UUID, int]
"""The number of partitions of each topic."""
Assignment = dict[str, list[TopicSlot]]
Assignor = Callable[[Sequence[AssignedMember], Counts], Assignment]


def assign_range(members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    """Contiguous ranges of each topic, in the order of instance ids, then of member ids."""
    result: Assignment = {member.member_id: [] for member in members}
    ordered = sorted(members, key=lambda one: (one.instance_id is None, _sort_name(one)))
    subscribers: dict[UUID, list[str]] = {}
    for member in ordered:
        for topic in member.topics:
            subscribers.setdefault(topic, []).append(member.member_id)
    for topic, names in subscribers.items():
        share, extra = divmod(counts[topic], len(names))
        start = 0
        for place, name in enumerate(names):
            end = start + share + (place < extra)
            result[name] += [(topic, index) for index in range(start, end)]
            start = end
    return result


def _sort_name(member: AssignedMember) -> str:
    return member.member_id if member.instance_id is None else member.instance_id


def assign_uniform(members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    """Balanced and sticky."""
    if not members:
        return {}
    first = members[0].topics
    if all(member.topics == first for member in members):
        return _assign_alike(members, counts, first)
    return _assign_unlike(members, counts)


def _kept(members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    """The former partitions that exist and are still subscribed, each with one owner."""
    taken: dict[TopicSlot, None] = {}
    kept: Assignment = {}
    for member in members:
        subscribed = dict.fromkeys(member.topics)
        mine = kept[member.member_id] = []
        for slot in member.former:
            topic, index = slot
            if topic in subscribed and index < counts[topic] and slot not in taken:
                taken[slot] = None
                mine.append(slot)
    return kept


def _assign_alike(
    members: Sequence[AssignedMember], counts: Counts, topics: Sequence[UUID]
) -> Assignment:
    """All members subscribe to the same topics: each gets the quota, some get one more."""
    result = _kept(members, counts)
    slots = [(topic, index) for topic in topics for index in range(counts[topic])]
    quota, extra = divmod(len(slots), len(members))
    # Members with the most partitions get the larger share, so that fewer of them move.
    ordered = sorted(members, key=lambda one: -len(result[one.member_id]))
    limits = {one.member_id: quota + (place < extra) for place, one in enumerate(ordered)}
    for member_id, mine in result.items():
        del mine[limits[member_id] :]
    taken = {slot: None for mine in result.values() for slot in mine}
    rest = iter([slot for slot in slots if slot not in taken])
    for member in members:
        mine = result[member.member_id]
        for _ in range(limits[member.member_id] - len(mine)):
            mine.append(next(rest))
    return result


def _assign_unlike(members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    """Subscriptions differ: assign what is free to the least loaded, then even out."""
    result = _kept(members, counts)
    subscribers: dict[UUID, list[str]] = {}
    for member in members:
        for topic in member.topics:
            subscribers.setdefault(topic, []).append(member.member_id)
    # Topics with few subscribers first: they leave the least choice.
    order = sorted(
        subscribers, key=lambda topic: (-counts[topic] / len(subscribers[topic]), topic.int)
    )
    loads = {name: len(mine) for name, mine in result.items()}
    taken = {slot: None for mine in result.values() for slot in mine}
    for topic in order:
        for index in range(counts[topic]):
            if (topic, index) not in taken:
                name = min(subscribers[topic], key=loads.__getitem__)
                result[name].append((topic, index))
                loads[name] += 1
    owned = _by_topic(result)
    for _ in range(BALANCING_ROUNDS_MAX):
        moved = [_even_out(owned[t], subscribers[t], loads) for t in order if t in owned]
        if not any(moved):
            break
    return {
        name: [slot for topic in order for slot in owned.get(topic, {}).get(name, ())]
        for name in result
    }


def _by_topic(result: Assignment) -> dict[UUID, dict[str, list[TopicSlot]]]:
    owned: dict[UUID, dict[str, list[TopicSlot]]] = {}
    for name, mine in result.items():
        for slot in mine:
            owned.setdefault(slot[0], {}).setdefault(name, []).append(slot)
    return owned


def _even_out(
    owners: dict[str, list[TopicSlot]], subscribers: Sequence[str], loads: dict[str, int]
) -> bool:
    """Move partitions of one topic from loaded to idle subscribers. True if one moved."""
    has_moved = False
    for donor in sorted(owners, key=lambda name: -loads[name]):
        mine = owners[donor]
        while mine:
            receiver = min(subscribers, key=loads.__getitem__)
            if loads[donor] - loads[receiver] < 2:
                break
            owners.setdefault(receiver, []).append(mine.pop())
            loads[donor] -= 1
            loads[receiver] += 1
            has_moved = True
    return has_moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
