"""Placement of new partitions: rules, fairness and determinism for any numbers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import (
    Availability,
    BrokerLoad,
    PlacementBroker,
    PlacementPolicy,
)
from riverrun.placement.explanation import explain
from riverrun.placement.new_partitions import place
from riverrun.placement.shares import rack_rule

SPREADING = (PlacementPolicy.RACK_AWARE, PlacementPolicy.RESOURCE_AWARE)
Assignments = list[tuple[NodeId, ...]]


def brokers(count: int, racks: int = 0, fenced: int = 0) -> list[PlacementBroker]:
    return [
        PlacementBroker(
            id=NodeId(number),
            rack=f"rack{number % racks}" if racks else None,
            availability=Availability.FENCED if number >= count - fenced else Availability.ACTIVE,
        )
        for number in range(count)
    ]


def placed(
    known: Sequence[PlacementBroker],
    partitions: int,
    replicas: int,
    *,
    policy: PlacementPolicy = PlacementPolicy.RESOURCE_AWARE,
    seed: int = 1,
    existing: Sequence[Sequence[NodeId]] = (),
) -> Assignments:
    return place(
        known,
        partitions=partitions,
        replicas=replicas,
        policy=policy,
        seed=seed,
        existing=existing,
    ).assignments


def counted(known: Sequence[PlacementBroker], found: Assignments) -> list[PlacementBroker]:
    """The brokers after a placement."""
    replicas = Counter(node for one in found for node in one)
    leaders = Counter(one[0] for one in found)
    return [
        replace(
            one, replicas=one.replicas + replicas[one.id], leaders=one.leaders + leaders[one.id]
        )
        for one in known
    ]


def spread(values: Sequence[int]) -> int:
    return max(values) - min(values)


Case = tuple[int, int, int, int, int]
cases = st.integers(1, 9).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.integers(1, count),
        st.integers(1, 40),
        st.integers(0, count),
        st.integers(0, 2**32),
    )
)


@given(cases, st.sampled_from(PlacementPolicy))
def test_replicas_are_distinct_known_and_complete(case: Case, policy: PlacementPolicy) -> None:
    count, replicas, partitions, racks, seed = case
    found = placed(brokers(count, racks), partitions, replicas, policy=policy, seed=seed)
    assert len(found) == partitions
    for one in found:
        assert len(set(one)) == len(one) == replicas
        assert all(0 <= node < count for node in one)


@given(cases, st.sampled_from(PlacementPolicy))
def test_leader_counts_differ_by_at_most_one(case: Case, policy: PlacementPolicy) -> None:
    count, replicas, partitions, racks, seed = case
    found = placed(brokers(count, racks), partitions, replicas, policy=policy, seed=seed)
    leads = Counter(one[0] for one in found)
    assert spread([leads[NodeId(node)] for node in range(count)]) <= 1


@given(cases)
def test_replica_counts_differ_by_at_most_one_without_racks(case: Case) -> None:
    count, replicas, partitions, _, seed = case
    found = placed(brokers(count), partitions, replicas, seed=seed)
    holds = Counter(node for one in found for node in one)
    assert spread([holds[NodeId(node)] for node in range(count)]) <= 1


@given(cases, st.integers(1, 4))
def test_replica_counts_differ_by_at_most_one_in_racks_of_equal_size(case: Case, each: int) -> None:
    racks, replicas, partitions, _, seed = case
    known = brokers(racks * each, racks)
    found = placed(known, partitions, replicas, seed=seed)
    holds = Counter(node for one in found for node in one)
    assert spread([holds[one.id] for one in known]) <= 1


@given(cases)
def test_replica_counts_differ_by_at_most_one_inside_a_rack(case: Case) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count, racks)
    found = placed(known, partitions, replicas, seed=seed)
    holds = Counter(node for one in found for node in one)
    for rack in {one.rack for one in known}:
        assert spread([holds[one.id] for one in known if one.rack == rack]) <= 1


@given(cases, st.sampled_from(SPREADING))
def test_partitions_spread_over_racks_as_evenly_as_possible(
    case: Case, policy: PlacementPolicy
) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count, racks)
    rack_of = {one.id: one.rack for one in known}
    sizes = Counter(rack_of.values())
    rule = rack_rule(list(sizes.values()), replicas)
    for one in placed(known, partitions, replicas, policy=policy, seed=seed):
        used = Counter(rack_of[node] for node in one)
        assert len(used) == min(replicas, len(sizes))
        for rack, low, high in zip(sizes, rule.low, rule.high, strict=True):
            assert low <= used[rack] <= high


@given(cases, st.integers(1, 7), st.sampled_from(PlacementPolicy))
def test_fenced_brokers_never_lead_and_are_used_last(
    case: Case, fenced: int, policy: PlacementPolicy
) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count + fenced, racks, fenced)
    live = {one.id for one in known if one.availability is Availability.ACTIVE}
    for more in (replicas, min(replicas + 1, count + fenced)):
        for one in placed(known, partitions, more, policy=policy, seed=seed):
            assert one[0] in live
            assert len(live.intersection(one)) == min(more, len(live))


@given(cases, st.sampled_from((Availability.CORDONED, Availability.DRAINING, Availability.GONE)))
def test_cordoned_and_draining_brokers_get_nothing(case: Case, away: Availability) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count + 2, racks)
    known[0] = replace(known[0], availability=away)
    known[-1] = replace(known[-1], availability=away)
    for policy in PlacementPolicy:
        found = placed(known, partitions, replicas, policy=policy, seed=seed)
        assert not {known[0].id, known[-1].id}.intersection(*[{n for o in found for n in o}])


@given(cases, st.sampled_from(PlacementPolicy))
def test_same_input_and_seed_give_the_same_placement(case: Case, policy: PlacementPolicy) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count, racks)
    first = placed(known, partitions, replicas, policy=policy, seed=seed)
    assert first == placed(known[::-1], partitions, replicas, policy=policy, seed=seed)


@given(
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=60),
    st.sampled_from(SPREADING),
)
def test_many_small_topics_do_not_drift(
    count: int, topics: list[tuple[int, int]], policy: PlacementPolicy
) -> None:
    known = brokers(count)
    for seed, (partitions, replicas) in enumerate(topics):
        factor = min(replicas, count)
        known = counted(known, placed(known, partitions, factor, policy=policy, seed=seed))
    # A drift grows with the number of topics. Each topic alone may add one where it has no choice.
    assert spread([one.replicas for one in known]) <= 3
    assert spread([one.leaders for one in known]) <= 6


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_topics_of_one_partition_stay_even(replicas: int) -> None:
    known = brokers(7)
    for seed in range(150):
        known = counted(known, placed(known, 1, replicas, seed=seed))
    assert spread([one.replicas for one in known]) <= 1
    assert spread([one.leaders for one in known]) <= 2


def test_many_small_topics_do_not_drift_in_racks_of_unequal_size() -> None:
    racks = ["a"] * 2 + ["b"] * 4 + ["c"] * 6
    known = [PlacementBroker(id=NodeId(n), rack=rack) for n, rack in enumerate(racks)]
    for seed in range(60):
        known = counted(known, placed(known, 8, 2, seed=seed))
    assert sum(one.replicas for one in known) == 960
    assert spread([one.replicas for one in known]) <= 2
    assert spread([one.leaders for one in known]) <= 2


@given(cases, st.integers(1, 40))
def test_added_partitions_keep_the_whole_topic_even(case: Case, more: int) -> None:
    count, replicas, partitions, _, seed = case
    known = brokers(count)
    first = placed(known, partitions, replicas, seed=seed)
    second = placed(counted(known, first), more, replicas, seed=seed + 1, existing=first)
    after = counted(counted(known, first), second)
    assert spread([one.replicas for one in after]) <= 1
    # One more than in a new topic: existing leaders stay where they are.
    assert spread([one.leaders for one in after]) <= 2


def test_weights_divide_replicas_and_leaders() -> None:
    known = [replace(one, weight=3.0 if one.id == 0 else 1.0) for one in brokers(4)]
    after = counted(known, placed(known, 60, 1))
    assert [one.replicas for one in after] == [30, 10, 10, 10]
    for seed in range(60):
        after = counted(after, placed(after, 1, 1, seed=seed))
    assert [one.leaders for one in after] == [60, 20, 20, 20]


def loaded(known: Sequence[PlacementBroker], *used: int) -> list[PlacementBroker]:
    return [
        replace(one, load=BrokerLoad(disk_bytes=bytes_, disk_capacity=100, replicas=one.replicas))
        for one, bytes_ in zip(known, used, strict=True)
    ]


def test_fuller_disks_get_fewer_replicas() -> None:
    known = loaded([replace(one, replicas=10) for one in brokers(3)], 70, 30, 50)
    after = known
    for seed in range(9):
        after = counted(after, placed(after, 1, 1, seed=seed))
    assert after[0].replicas < after[2].replicas < after[1].replicas


def test_one_measurement_does_not_attract_every_new_topic() -> None:
    """Replicas placed since the measurement count as average ones."""
    known = loaded([replace(one, replicas=20) for one in brokers(2)], 40, 50)
    after = known
    for seed in range(20):
        after = counted(after, placed(after, 1, 1, seed=seed))
    assert after[0].replicas > 20 + 6
    assert after[1].replicas > 20 + 6


def test_nearly_full_disk_is_used_only_where_a_rack_requires_it() -> None:
    alone = loaded(brokers(3), 90, 10, 10)
    assert all(0 not in one for one in placed(alone, 30, 2))
    racks = loaded(brokers(3, racks=3), 90, 10, 10)
    assert all(0 in one for one in placed(racks, 30, 3))


def test_unknown_loads_are_ignored() -> None:
    known = brokers(4, racks=2)
    half = [replace(known[0], load=BrokerLoad(disk_bytes=9, disk_capacity=10)), *known[1:]]
    assert placed(half, 8, 2) == placed(known, 8, 2)


def test_loss_of_any_broker_spreads_its_leaders() -> None:
    known = brokers(10)
    found = placed(known, 1000, 3)
    for lost in known:
        heirs = Counter(one[1] for one in found if one[0] == lost.id)
        assert len(heirs) == 9
        assert max(heirs.values()) <= 1.3 * 100 / 9


def test_partitions_have_many_different_sets_of_replicas() -> None:
    found = placed(brokers(12), 120, 3)
    assert len({frozenset(one) for one in found}) > 60


def test_first_broker_is_random() -> None:
    firsts = {placed(brokers(5), 1, 3, seed=seed)[0] for seed in range(60)}
    assert {one[0] for one in firsts} == {0, 1, 2, 3, 4}
    assert len(firsts) > 10


def test_range_places_consecutive_brokers_from_the_one_with_fewest_leaders() -> None:
    known = counted(brokers(4), [(NodeId(0), NodeId(2))])
    assert placed(known, 5, 2, policy=PlacementPolicy.RANGE) == [
        (1, 2), (2, 3), (3, 0), (0, 1), (1, 3),
    ]  # fmt: skip


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        placed(brokers(1), 1, 2)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused.value.message == (
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be "
        "reached because only 1 broker(s) are registered or some brokers have all their log "
        "directories cordoned."
    )


@pytest.mark.parametrize("known", [[], brokers(2, fenced=2)])
def test_cluster_without_unfenced_brokers_is_refused(known: list[PlacementBroker]) -> None:
    with pytest.raises(KafkaError, match="All brokers are currently fenced"):
        placed(known, 1, 1)


def test_thousand_partitions_on_thousand_brokers_take_no_time() -> None:
    """0.02 s on an idle machine; the limit only excludes a cost of partitions times brokers."""
    began = time.process_time()
    placed(brokers(1000, racks=3), 1000, 3)
    placed(brokers(1000, racks=1000), 1000, 3)
    placed(brokers(1000, fenced=998), 1000, 3)
    assert time.process_time() - began < 1.5


def test_explanation_gives_counts_and_reasons() -> None:
    known = [replace(one, replicas=4, leaders=2) for one in brokers(4, racks=2, fenced=1)]
    told = explain(known, partitions=2, replicas=2, policy=PlacementPolicy.RESOURCE_AWARE, seed=3)
    chosen = [tuple(one.broker for one in row) for row in told.partitions]
    assert chosen == placed(known, 2, 2, seed=3)
    assert sum(one.replicas_after - one.replicas_before for one in told.brokers) == 4
    assert sum(one.leaders_after - one.leaders_before for one in told.brokers) == 2
    first = told.partitions[0][0]
    assert first.is_leader
    assert first.reason.startswith("fewest leaders among its replicas, new rack rack")
    assert told.brokers[3].note == "fenced: used only if there are too few others, never leads"


def test_explanation_names_the_resource_that_decides() -> None:
    known = [
        replace(
            one,
            replicas=4,
            load=BrokerLoad(bytes_in=rate, bytes_in_capacity=100.0, replicas=4),
        )
        for one, rate in zip(brokers(3), (90.0, 10.0, 20.0), strict=True)
    ]
    told = explain(known, partitions=1, replicas=1, policy=PlacementPolicy.RESOURCE_AWARE, seed=1)
    assert told.partitions[0][0].broker != 0
    assert [one.note for one in told.brokers] == ["bytes in decides: 2.25 of the mean", "", ""]
    assert [one.bytes_in for one in told.brokers] == [90.0, 10.0, 20.0]
    by_count = explain(known, partitions=1, replicas=1, policy=PlacementPolicy.RACK_AWARE, seed=1)
    assert {one.note for one in by_count.brokers} == {""}
