"""Properties of the server-side assignors: complete, balanced, sticky."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from riverrun.coordinator.consumer import assignors
from riverrun.coordinator.consumer.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignment,
    Assignor,
    Counts,
)
from riverrun.coordinator.consumer.records import TopicSlot

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
COUNTS = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
SUBSCRIPTIONS = st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=8)


def members_of(
    subscriptions: Sequence[set[uuid.UUID]], former: Assignment | None = None
) -> list[AssignedMember]:
    return [
        AssignedMember(
            member_id=f"m{place}",
            instance_id=f"i{place}" if place % 3 == 2 else None,
            topics=tuple(sorted(topics, key=lambda one: one.int)),
            former=tuple((former or {}).get(f"m{place}", ())),
        )
        for place, topics in enumerate(subscriptions)
    ]


def assigned(assignor: Assignor, members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    """The result after all slices."""
    work = assignor(members, counts)
    while True:
        try:
            assert next(work) >= 0
        except StopIteration as finished:
            result: Assignment = finished.value
            return result


def assign_uniform(members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    return assigned(assignors.assign_uniform, members, counts)


def assign_range(members: Sequence[AssignedMember], counts: Counts) -> Assignment:
    return assigned(assignors.assign_range, members, counts)


def owners_of(result: Assignment) -> dict[TopicSlot, str]:
    owners: dict[TopicSlot, str] = {}
    for name, slots in result.items():
        for slot in slots:
            assert slot not in owners, f"{slot} has two owners"
            owners[slot] = name
    return owners


@given(SUBSCRIPTIONS, COUNTS, st.sampled_from(sorted(ASSIGNORS)))
def test_every_subscribed_partition_has_one_owner_that_subscribes_to_it(
    subscriptions: list[set[uuid.UUID]], counts: dict[uuid.UUID, int], name: str
) -> None:
    members = members_of(subscriptions)
    owners = owners_of(assigned(ASSIGNORS[name], members, counts))
    topics = {one.member_id: one.topics for one in members}
    assert all(slot[0] in topics[owner] for slot, owner in owners.items())
    subscribed = set().union(*subscriptions)
    assert set(owners) == {(t, i) for t in subscribed for i in range(counts[t])}


@given(st.integers(1, 9), COUNTS)
def test_uniform_counts_differ_by_at_most_one(count: int, counts: dict[uuid.UUID, int]) -> None:
    result = assign_uniform(members_of([set(TOPICS)] * count), counts)
    sizes = [len(slots) for slots in result.values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 8), st.integers(1, 8), COUNTS)
def test_uniform_moves_only_what_balance_requires(
    before: int, after: int, counts: dict[uuid.UUID, int]
) -> None:
    old = assign_uniform(members_of([set(TOPICS)] * before), counts)
    new = assign_uniform(members_of([set(TOPICS)] * after, old), counts)
    total = sum(counts.values())
    moved = [slot for slot, name in owners_of(new).items() if slot not in old.get(name, ())]
    quota, extra = divmod(total, after)
    sizes = sorted((len(old.get(f"m{place}", ())) for place in range(after)), reverse=True)
    kept = sum(min(size, quota + (place < extra)) for place, size in enumerate(sizes))
    assert len(moved) == total - kept


@given(SUBSCRIPTIONS, COUNTS)
def test_uniform_leaves_no_move_that_improves_the_balance(
    subscriptions: list[set[uuid.UUID]], counts: dict[uuid.UUID, int]
) -> None:
    members = members_of(subscriptions)
    result = assign_uniform(members, counts)
    sizes = {name: len(slots) for name, slots in result.items()}
    for slot, owner in owners_of(result).items():
        for member in members:
            if slot[0] in member.topics:
                assert sizes[owner] - sizes[member.member_id] <= 1


@given(SUBSCRIPTIONS, COUNTS, st.sampled_from(sorted(ASSIGNORS)))
def test_a_second_computation_changes_nothing(
    subscriptions: list[set[uuid.UUID]], counts: dict[uuid.UUID, int], name: str
) -> None:
    first = assigned(ASSIGNORS[name], members_of(subscriptions), counts)
    second = assigned(ASSIGNORS[name], members_of(subscriptions, first), counts)
    assert owners_of(first) == owners_of(second)


@given(st.integers(1, 8), st.integers(1, 9))
def test_range_is_contiguous_and_co_partitioned(count: int, partitions: int) -> None:
    counts = dict.fromkeys(TOPICS, partitions)
    result = assign_range(members_of([set(TOPICS)] * count), counts)
    for slots in result.values():
        parts = [sorted(index for topic, index in slots if topic == one) for one in TOPICS]
        assert all(part == parts[0] for part in parts)
        assert all(high - low == 1 for low, high in pairwise(parts[0]))
