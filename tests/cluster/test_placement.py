"""Placement of replicas: balanced over brokers and racks for any numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.cluster.partitions.placement import PlacementCandidate, place, placement_candidates
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from tests.cluster.fakes import SeededRandomness, cluster_of


def brokers(count: int, racks: int = 0, fenced: int = 0) -> list[PlacementCandidate]:
    return [
        PlacementCandidate(
            id=NodeId(number),
            rack=f"rack{number % racks}" if racks else None,
            is_fenced=number >= count - fenced,
        )
        for number in range(count)
    ]


Case = tuple[int, int, int, int, int]
cases = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.integers(1, count),
        st.integers(1, 40),
        st.integers(0, count),
        st.integers(0, 2**32),
    )
)


@given(cases)
def test_replicas_are_distinct_known_and_complete(case: Case) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count, racks)
    placed = place(
        known, partitions=partitions, replicas=replicas, randomness=SeededRandomness(seed)
    )
    assert len(placed) == partitions
    for one in placed:
        assert len(set(one)) == len(one) == replicas
        assert all(0 <= node < count for node in one)


@given(cases)
def test_leader_counts_differ_by_at_most_one(case: Case) -> None:
    count, replicas, partitions, racks, seed = case
    placed = place(
        brokers(count, racks),
        partitions=partitions,
        replicas=replicas,
        randomness=SeededRandomness(seed),
    )
    leads = [sum(one[0] == node for one in placed) for node in range(count)]
    assert max(leads) - min(leads) <= 1


@given(cases)
def test_replicas_are_balanced_over_brokers_without_racks(
    case: Case,
) -> None:
    count, replicas, partitions, _, seed = case
    placed = place(
        brokers(count),
        partitions=partitions,
        replicas=replicas,
        randomness=SeededRandomness(seed),
    )
    holds = [sum(node in one for one in placed) for node in range(count)]
    assert max(holds) - min(holds) <= 2


@given(cases)
def test_every_partition_uses_as_many_racks_as_possible(
    case: Case,
) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count, racks)
    placed = place(
        known, partitions=partitions, replicas=replicas, randomness=SeededRandomness(seed)
    )
    rack_of = {one.id: one.rack for one in known}
    there_are = len(set(rack_of.values()))
    for one in placed:
        assert len({rack_of[node] for node in one}) == min(replicas, there_are)


@given(cases, st.integers(1, 7))
def test_fenced_brokers_never_lead_and_are_used_last(case: Case, fenced: int) -> None:
    count, replicas, partitions, racks, seed = case
    known = brokers(count + fenced, racks, fenced)
    live = {one.id for one in known if not one.is_fenced}
    placed = place(
        known, partitions=partitions, replicas=replicas, randomness=SeededRandomness(seed)
    )
    for one in placed:
        assert one[0] in live
        assert len(live.intersection(one)) == min(replicas, len(live))


def test_first_leader_is_random() -> None:
    firsts = {
        place(brokers(5), partitions=1, replicas=3, randomness=SeededRandomness(seed))[0]
        for seed in range(40)
    }
    assert {one[0] for one in firsts} == {0, 1, 2, 3, 4}
    assert len(firsts) > 10


def test_followers_of_a_leader_change_with_each_round() -> None:
    placed = place(brokers(4), partitions=12, replicas=2, randomness=SeededRandomness())
    for leader in range(4):
        assert len({one[1] for one in placed if one[0] == leader}) > 1


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        place(brokers(1), partitions=1, replicas=2, randomness=SeededRandomness())
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused.value.message == (
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be "
        "reached because only 1 broker(s) are registered or some brokers have all their log "
        "directories cordoned."
    )


@pytest.mark.parametrize("known", [[], brokers(2, fenced=2)])
def test_cluster_without_unfenced_brokers_is_refused(
    known: list[PlacementCandidate],
) -> None:
    with pytest.raises(KafkaError, match="All brokers are currently fenced"):
        place(known, partitions=1, replicas=1, randomness=SeededRandomness())


def test_candidates_are_the_registered_brokers() -> None:
    image = cluster_of(1, 2, racks={2: "b"})
    assert [(one.id, one.rack, one.is_fenced) for one in placement_candidates(image)] == [
        (1, None, False),
        (2, "b", False),
    ]
