"""Server-side assignors: ``uniform`` and ``range``.

Both take the members with their subscriptions and former targets, and the partition counts of the
topics, and return the partitions of each member. The result depends on these values only, so a
retry or another coordinator computes the same.

* ``uniform``: balance first, then as few moves as possible. If all members subscribe to the same
  topics, their counts differ by at most one. Otherwise no move of one partition between two
  subscribers improves the balance.
* ``range``: consecutive partitions of each topic. Topics with the same subscribers and the same
  number of partitions are co-partitioned. Stickiness follows from the fixed order of the members.

An assignor is a generator, because a large group takes longer than one turn may. It yields the work
that it has done since it last yielded, in operations on one partition or one member.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final
from uuid import UUID

from msgspec import Struct

from riverrun.coordinator.consumer.records import TopicSlot

BALANCING_ROUNDS_MAX: Final = 32
"""Passes over all topics. Each pass at least halves the imbalance in practice."""

SLOTS_PER_STEP: Final = 1000
"""One member may have all partitions, so also its own ones are visited in steps."""


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
Work = Generator[int, None, Assignment]
Assignor = Callable[[Sequence[AssignedMember], Counts], Work]


def assign_range(members: Sequence[AssignedMember], counts: Counts) -> Work:
    """Contiguous ranges of each topic, in the order of instance ids, then of member ids."""
    result: Assignment = {member.member_id: [] for member in members}
    ordered = sorted(members, key=lambda one: (one.instance_id is None, _sort_name(one)))
    subscribers = yield from _subscribers(ordered)
    for topic, names in subscribers.items():
        share, extra = divmod(counts[topic], len(names))
        start = 0
        # Without a share, the members after the extra ones get nothing.
        for place, name in enumerate(names if share else names[:extra]):
            end = start + share + (place < extra)
            result[name] += [(topic, index) for index in range(start, end)]
            start = end
        yield counts[topic]
    return result


def _sort_name(member: AssignedMember) -> str:
    return member.member_id if member.instance_id is None else member.instance_id


def _subscribers(
    members: Sequence[AssignedMember],
) -> Generator[int, None, dict[UUID, Sequence[str]]]:
    """The members of each topic. Members with equal subscriptions are counted together."""
    alike = yield from _by_subscription(members)
    if len(alike) == 1:
        [(topics, names)] = alike.items()
        return dict.fromkeys(topics, names)
    found: dict[UUID, list[str]] = {}
    for member in members:
        for topic in member.topics:
            found.setdefault(topic, []).append(member.member_id)
        yield len(member.topics)
    return dict(found)


def _by_subscription(
    members: Sequence[AssignedMember],
) -> Generator[int, None, dict[tuple[UUID, ...], list[str]]]:
    found: dict[tuple[UUID, ...], list[str]] = {}
    last: list[str] = []
    topics: tuple[UUID, ...] | None = None
    for member in members:
        # Equal subscriptions are mostly one object, and hashing a long one takes time.
        if member.topics is not topics:
            topics = member.topics
            last = found.setdefault(topics, [])
            yield len(topics)
        last.append(member.member_id)
        yield 1
    return found


def assign_uniform(members: Sequence[AssignedMember], counts: Counts) -> Work:
    """Balanced and sticky."""
    if not members:
        return {}
    alike = yield from _by_subscription(members)
    if len(alike) == 1:
        return (yield from _assign_alike(members, counts, members[0].topics))
    return (yield from _assign_unlike(members, counts))


def _kept(members: Sequence[AssignedMember], counts: Counts) -> Work:
    """The former partitions that exist and are still subscribed, each with one owner."""
    taken: dict[TopicSlot, None] = {}
    kept: Assignment = {}
    topics: tuple[UUID, ...] = ()
    subscribed: dict[UUID, None] = {}
    for member in members:
        mine = kept[member.member_id] = []
        if member.topics is not topics and member.former:
            topics = member.topics
            subscribed = dict.fromkeys(topics)
            yield len(topics)
        for start in range(0, len(member.former), SLOTS_PER_STEP):
            former = member.former[start : start + SLOTS_PER_STEP]
            for slot in former:
                topic, index = slot
                if topic in subscribed and index < counts[topic] and slot not in taken:
                    taken[slot] = None
                    mine.append(slot)
            yield len(former)
        yield 1
    return kept


def _assign_alike(
    members: Sequence[AssignedMember], counts: Counts, topics: Sequence[UUID]
) -> Work:
    """All members subscribe to the same topics: each gets the quota, some get one more."""
    result = yield from _kept(members, counts)
    quota, extra = divmod(sum(counts[topic] for topic in topics), len(members))
    # Members with the most partitions get the larger share, so that fewer of them move.
    ordered = sorted(members, key=lambda one: -len(result[one.member_id]))
    limits = {one.member_id: quota + (place < extra) for place, one in enumerate(ordered)}
    taken: dict[TopicSlot, None] = {}
    for member_id, mine in result.items():
        del mine[limits[member_id] :]
        taken.update(dict.fromkeys(mine))
        yield 1 + len(mine)
    slots = ((topic, index) for topic in topics for index in range(counts[topic]))
    rest = (slot for slot in slots if slot not in taken)
    for member in members:
        mine = result[member.member_id]
        missing = limits[member.member_id] - len(mine)
        mine += [next(rest) for _ in range(missing)]
        yield 1 + missing
    return result


def _assign_unlike(members: Sequence[AssignedMember], counts: Counts) -> Work:
    """Subscriptions differ: assign what is free to the least loaded, then even out."""
    result = yield from _kept(members, counts)
    subscribers = yield from _subscribers(members)
    # Topics with few subscribers first: they leave the least choice.
    order = sorted(
        subscribers, key=lambda topic: (-counts[topic] / len(subscribers[topic]), topic.int)
    )
    loads = {name: len(mine) for name, mine in result.items()}
    owned = yield from _by_topic(result)
    for topic in order:
        owners = owned.setdefault(topic, {})
        taken = {slot: None for mine in owners.values() for slot in mine}
        least = _by_load(subscribers[topic], loads)
        for index in range(counts[topic]):
            if (topic, index) not in taken:
                load, place, name = least[0]
                owners.setdefault(name, []).append((topic, index))
                loads[name] = load + 1
                heapreplace(least, (load + 1, place, name))
        yield counts[topic] + len(subscribers[topic])
    for _ in range(BALANCING_ROUNDS_MAX):
        has_moved = False
        for topic in order:
            has_moved |= _even_out(owned[topic], subscribers[topic], loads)
            yield counts[topic] + len(subscribers[topic])
        if not has_moved:
            break
    even: Assignment = {name: [] for name in result}
    for topic in order:
        for name, mine in owned[topic].items():
            even[name] += mine
        yield counts[topic]
    return even


def _by_load(names: Sequence[str], loads: Mapping[str, int]) -> list[tuple[int, int, str]]:
    """A heap of the names, the least loaded one first. Equal loads keep the order of the names."""
    heap = [(loads[name], place, name) for place, name in enumerate(names)]
    heapify(heap)
    return heap


def _by_topic(
    result: Assignment,
) -> Generator[int, None, dict[UUID, dict[str, list[TopicSlot]]]]:
    owned: dict[UUID, dict[str, list[TopicSlot]]] = {}
    for name, mine in result.items():
        for slot in mine:
            owned.setdefault(slot[0], {}).setdefault(name, []).append(slot)
        yield 1 + len(mine)
    return owned


def _even_out(
    owners: dict[str, list[TopicSlot]], subscribers: Sequence[str], loads: dict[str, int]
) -> bool:
    """Move partitions of one topic from loaded to idle subscribers. True if one moved."""
    least = min(loads[name] for name in subscribers)
    if all(loads[name] - least < 2 for name, mine in owners.items() if mine):
        return False
    heap = _by_load(subscribers, loads)
    places = {name: place for place, name in enumerate(subscribers)}
    has_moved = False
    for donor in sorted(owners, key=lambda name: -loads[name]):
        mine = owners[donor]
        while mine:
            while heap[0][0] != loads[heap[0][2]]:
                heappop(heap)  # its load has changed, and a newer entry has it
            receiver = heap[0][2]
            if loads[donor] - loads[receiver] < 2:
                break
            owners.setdefault(receiver, []).append(mine.pop())
            for name, change in ((donor, -1), (receiver, 1)):
                loads[name] += change
                heappush(heap, (loads[name], places[name], name))
            has_moved = True
    return has_moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
