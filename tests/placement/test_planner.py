"""Plans: rules are never broken, counts end within one, and as little as possible moves."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker
from riverrun.placement.planner.by_size import ReplicasBySize
from riverrun.placement.planner.fairness import failover_max_over_mean
from riverrun.placement.planner.layout import ClusterLayout, LayoutBuilder
from riverrun.placement.planner.plan import Goal, Plan, Purpose, make_plan
from riverrun.placement.planner.resizing import kept_replicas
from riverrun.placement.shares import rack_rule
from tests.placement.layouts import World, brokers, spread, topic_lists, world

seeds = st.integers(0, 2**32)


def check_rules(before: World, plan: Plan) -> None:
    """What holds for every plan."""
    active = set(before.active())
    for move in plan.moves:
        assert move.before == before.replicas[move.topic, move.partition]
        assert len(set(move.after)) == len(move.after) == len(move.before)
        assert active.issuperset(move.adding)
        assert move.reason
    keys = [(move.topic, move.partition) for move in plan.moves]
    assert len(set(keys)) == len(keys), "one move per partition"


def check_racks(before: World, after: World) -> None:
    """No partition breaks the rack rule that kept it before."""
    sizes = Counter(before.rack_of(node) for node in before.active())
    for key, nodes in after.replicas.items():
        rule = rack_rule(list(sizes.values()), len(nodes))
        used = Counter(after.rack_of(node) for node in nodes)
        for rack, low, high in zip(sizes, rule.low, rule.high, strict=True):
            assert low <= used[rack] <= high, (key, nodes)


@given(st.integers(1, 8), topic_lists, st.integers(0, 3), seeds)
def test_no_plan_breaks_a_rule(
    count: int, topics: list[tuple[int, int]], racks: int, seed: int
) -> None:
    before = world(count, topics, racks=racks, seed=seed, even=False)
    for purpose in Purpose:
        plan = make_plan(before.layout(), purpose)
        check_rules(before, plan)
        if purpose is not Purpose.LEADERS:
            check_racks(before, before.after(plan))
        else:
            assert plan.bytes_to_copy == plan.replicas_moved == 0


@given(st.integers(1, 8), topic_lists, seeds)
def test_balanced_cluster_is_within_one_everywhere(
    count: int, topics: list[tuple[int, int]], seed: int
) -> None:
    before = world(count, topics, seed=seed, even=False)
    plan = make_plan(before.layout())
    after = before.after(plan)
    assert spread(after.counts()) <= 1
    for topic in after.topics():
        assert spread(after.topic(topic).counts()) <= 1
        assert spread(after.topic(topic).leads()) <= 1


@pytest.mark.parametrize("seed", range(10))
def test_leaders_of_all_topics_are_within_one(seed: int) -> None:
    """Not so with topics of one replica: their leaders are where their data is."""
    before = world(6, [(30, 3), (20, 2), (13, 3), (7, 2)], seed=seed, even=False)
    assert spread(before.after(make_plan(before.layout())).leads()) <= 1


@given(st.integers(1, 3), st.integers(2, 3), topic_lists, seeds)
def test_counts_are_nearly_even_in_racks_of_equal_size(
    each: int, racks: int, topics: list[tuple[int, int]], seed: int
) -> None:
    """The planner makes single moves and swaps; racks may require a chain of moves for the last
    replica."""
    before = world(each * racks, topics, racks=racks, seed=seed, even=False)
    after = before.after(make_plan(before.layout()))
    assert spread(after.counts()) <= 3
    for topic in after.topics():
        assert spread(after.topic(topic).counts()) <= 2


@given(st.integers(1, 8), topic_lists, st.integers(0, 3), seeds)
def test_second_plan_moves_no_data(
    count: int, topics: list[tuple[int, int]], racks: int, seed: int
) -> None:
    before = world(count, topics, racks=racks, seed=seed, even=False)
    before.sizes.clear()
    after = before.after(make_plan(before.layout()))
    assert make_plan(after.layout()).replicas_moved == 0


@given(st.integers(1, 8), topic_lists, seeds)
def test_same_layout_gives_the_same_plan(
    count: int, topics: list[tuple[int, int]], seed: int
) -> None:
    before = world(count, topics, seed=seed, even=False)
    assert make_plan(before.layout()) == make_plan(before.layout())


@given(st.integers(1, 8), st.integers(1, 60), st.integers(1, 3), seeds)
def test_new_broker_takes_its_share_and_nothing_else_moves(
    count: int, partitions: int, factor: int, seed: int
) -> None:
    before = world(count, [(partitions, factor)], seed=seed, even=True)
    before.sizes.clear()  # all of one size: there is no other goal to serve
    before.brokers.append(PlacementBroker(id=NodeId(99)))
    plan = make_plan(before.layout())
    total = sum(len(nodes) for nodes in before.replicas.values())
    assert all(set(move.adding) <= {99} for move in plan.moves)
    assert total // (count + 1) <= plan.replicas_moved <= -(-total // (count + 1))
    assert spread(before.after(plan).counts()) <= 1


@given(st.integers(1, 8), topic_lists, seeds)
def test_new_broker_moves_little_else_if_there_are_many_topics(
    count: int, topics: list[tuple[int, int]], seed: int
) -> None:
    """A topic can force a replica to leave a broker that then needs another one in its place."""
    before = world(count, topics, seed=seed, even=True)
    before.sizes.clear()
    before.brokers.append(PlacementBroker(id=NodeId(99)))
    plan = make_plan(before.layout())
    total = sum(len(nodes) for nodes in before.replicas.values())
    taken = sum(99 in move.adding for move in plan.moves)
    assert total // (count + 1) <= taken <= -(-total // (count + 1))
    assert plan.replicas_moved - taken <= len(topics)
    assert spread(before.after(plan).counts()) <= 1


SIZES_BY_NUMBER: dict[str, Callable[[int], float]] = {
    "the first third is larger": lambda number: 10.0 if number < 8 else 1.0,
    "falling": lambda number: 100.0 / (number + 1),
    "growing": lambda number: 1.0 + number,
}


@pytest.mark.parametrize("size_of", SIZES_BY_NUMBER.values(), ids=SIZES_BY_NUMBER)
def test_new_broker_takes_large_and_small_replicas_alike(size_of: Callable[[int], float]) -> None:
    before = world(6, [(24, 3)] * 40, seed=1, even=True)
    before.sizes = {key: size_of(key[1]) for key in before.replicas}
    before.brokers.append(PlacementBroker(id=NodeId(99)))
    plan = make_plan(before.layout())
    total = sum(len(nodes) for nodes in before.replicas.values())
    assert all(set(move.adding) <= {99} for move in plan.moves), "no swaps for the disk follow"
    assert plan.replicas_moved == total // 7
    assert plan.after.disk.max_over_mean < 1.05
    assert plan.after.disk.min_over_mean > 0.95


sizes = st.floats(0.0, 100.0) | st.sampled_from((1.0, 5.0))


@given(st.dictionaries(st.integers(0, 99), sizes, max_size=30), st.data())
def test_replicas_by_size_agree_with_a_plain_search(
    size_of: dict[int, float], data: st.DataObject
) -> None:
    pool = ReplicasBySize((size, slot) for slot, size in size_of.items())
    left = dict(size_of)
    for _ in range(3):
        unfit = data.draw(st.frozensets(st.integers(0, 99)))
        for wanted in data.draw(st.lists(sizes | st.floats(-10.0, 200.0), max_size=20)):
            taken = pool.take(wanted, lambda slot, unfit=unfit: slot not in unfit)  # type: ignore[misc]
            fitting = [slot for slot in left if slot not in unfit]
            least = min((abs(left[slot] - wanted) for slot in fitting), default=None)
            if taken is None:
                assert least is None
                continue
            slot, size = taken
            assert abs(size - wanted) == least
            assert slot == min(one for one in fitting if left[one] == size)
            assert left.pop(slot) == size
        pool.restart()


@given(st.integers(2, 8), topic_lists, seeds, st.sampled_from(("draining", "gone")))
def test_only_the_replicas_of_a_leaving_broker_move(
    count: int, topics: list[tuple[int, int]], seed: int, why: str
) -> None:
    small = [(partitions, min(factor, count - 1)) for partitions, factor in topics]
    before = world(count, small, seed=seed, even=True).with_state(0, Availability(why))
    plan = make_plan(before.layout(), Purpose.REPAIR)
    check_rules(before, plan)
    held = {key for key, nodes in before.replicas.items() if 0 in nodes}
    assert {(move.topic, move.partition) for move in plan.moves} == held
    assert all(move.removing == (0,) and len(move.adding) == 1 for move in plan.moves)
    assert not plan.unplaced
    expected = Goal.REPAIR if why == "gone" else Goal.DRAIN
    assert all(move.goal is expected for move in plan.moves)


def test_replicas_of_a_leaving_broker_spread_over_the_others() -> None:
    before = world(7, [(30, 3), (20, 2), (40, 1)], seed=4, even=True)
    before = before.with_state(0, Availability.DRAINING)
    after = before.after(make_plan(before.layout(), Purpose.REPAIR))
    assert spread(after.counts()) <= 1


@given(st.integers(2, 8), topic_lists, seeds)
def test_disk_ceiling_holds_with_old_copies_still_there(
    count: int, topics: list[tuple[int, int]], seed: int
) -> None:
    before = world(count, topics, seed=seed, even=False)
    capacity = int(max(before.disk().values()) * 1.3) + 1
    tight = before.with_capacity(capacity)
    used = tight.disk()
    for move in make_plan(tight.layout(), disk_ceiling=0.9).moves:
        for node in move.adding:
            used[node] += move.size_bytes
    for node, now in before.disk().items():
        assert used[node] <= max(capacity * 0.9, now)


def test_partitions_in_motion_and_with_few_in_sync_replicas_stay() -> None:
    before = world(6, [(12, 3)], seed=3, even=True)
    before.brokers.append(PlacementBroker(id=NodeId(99)))
    keys = list(before.replicas)
    before.pinned = keys[:6]
    before.in_sync = dict.fromkeys(keys[6:10], 2)  # min.insync.replicas is 2
    moved = {(move.topic, move.partition) for move in make_plan(before.layout()).moves
             if move.adding}  # fmt: skip
    assert moved
    assert moved <= set(keys[10:])


def test_repair_moves_partitions_with_few_in_sync_replicas() -> None:
    before = world(4, [(4, 3)], seed=3, even=True).with_state(0, Availability.GONE)
    before.in_sync = dict.fromkeys(before.replicas, 1)
    plan = make_plan(before.layout(), Purpose.REPAIR)
    assert plan.replicas_moved == sum(0 in nodes for nodes in before.replicas.values())


def test_single_replicas_move_too() -> None:
    before = World(brokers=brokers(2), replicas={("t", n): (NodeId(0),) for n in range(4)})
    assert make_plan(before.layout()).replicas_moved == 2


def test_fenced_and_cordoned_brokers_are_left_alone() -> None:
    before = world(5, [(20, 2)], seed=1, even=False)
    before = before.with_state(3, Availability.FENCED).with_state(4, Availability.CORDONED)
    plan = make_plan(before.layout())
    assert all(not {3, 4}.intersection((*move.adding, *move.removing)) for move in plan.moves)


def test_impossible_evacuation_names_its_remedy() -> None:
    before = world(3, [(2, 3)], even=True).with_state(0, Availability.DRAINING)
    plan = make_plan(before.layout(), Purpose.REPAIR)
    assert plan.replicas_moved == 0
    assert {one.reason for one in plan.unplaced} == {
        "every active broker holds a replica already; add a broker"
    }
    full = world(4, [(2, 3)], even=True).with_state(0, Availability.DRAINING).with_capacity(1)
    reasons = {one.reason for one in make_plan(full.layout(), Purpose.REPAIR).unplaced}
    assert reasons == {
        "no broker has enough free disk below the ceiling; add disk space or a broker"
    }


def test_broken_rack_rule_is_mended_with_one_move_per_partition() -> None:
    nodes = (NodeId(0), NodeId(2))
    before = World(brokers=brokers(4, racks=2), replicas={("t", n): nodes for n in range(6)})
    plan = make_plan(before.layout(), Purpose.REPAIR)
    check_racks(before, before.after(plan))
    assert plan.replicas_moved == 6
    assert {move.goal for move in plan.moves} == {Goal.RACKS}
    assert all(move.after[0] == move.before[0] for move in plan.moves), "leaders stay"


@pytest.mark.parametrize("nodes", [(0, 2), (2, 0)])
def test_rack_rule_is_mended_with_the_replica_that_is_not_cordoned(nodes: tuple[int, int]) -> None:
    """Brokers 0 and 2 share a rack, and 2 is cordoned."""
    replicas = {("t", 0): tuple(NodeId(node) for node in nodes)}
    before = World(brokers=brokers(3, racks=2), replicas=replicas)
    before = before.with_state(2, Availability.CORDONED)
    plan = make_plan(before.layout(), Purpose.REPAIR)
    assert sorted(before.after(plan).replicas["t", 0]) == [1, 2]


def test_rack_rule_of_cordoned_replicas_names_why_it_is_not_mended() -> None:
    before = World(brokers=brokers(6, racks=3), replicas={("t", 0): (NodeId(0), NodeId(3))})
    for node in (0, 3):
        before = before.with_state(node, Availability.CORDONED)
    plan = make_plan(before.layout(), Purpose.REPAIR)
    assert not plan.moves
    assert [one.reason for one in plan.unplaced] == [
        "the brokers in its rack are cordoned and keep their replicas"
    ]


def test_cordoned_replica_in_a_rack_of_its_own_breaks_no_rule() -> None:
    before = World(brokers=brokers(3, racks=3), replicas={("t", 0): (NodeId(0), NodeId(2))})
    plan = make_plan(before.with_state(2, Availability.CORDONED).layout(), Purpose.REPAIR)
    assert not plan.moves
    assert not plan.unplaced


def test_missing_rack_does_not_stop_a_repair() -> None:
    before = world(4, [(8, 2)], racks=2, even=True)
    for node in (1, 3):
        before = before.with_state(node, Availability.GONE)
    plan = make_plan(before.layout(), Purpose.REPAIR)
    assert not plan.unplaced
    assert all(set(nodes) == {0, 2} for nodes in before.after(plan).replicas.values())


def test_uneven_disks_are_evened_by_swaps() -> None:
    before = world(4, [(40, 1)], even=True, seed=2)
    for key, nodes in before.replicas.items():
        before.sizes[key] = 100.0 if nodes[0] in (0, 1) else 10.0
    plan = make_plan(before.layout())
    after = before.after(plan)
    assert plan.before.disk.max_over_mean > 1.7
    assert plan.after.disk.max_over_mean < 1.1
    assert max(after.disk().values()) < 1.1 * sum(after.disk().values()) / 4
    assert spread(after.counts()) == 0


def test_uneven_write_rates_are_evened_without_undoing_disk() -> None:
    builder = LayoutBuilder(brokers(4))
    for number in range(80):
        rate = 100.0 if number % 4 < 2 else 10.0
        builder.add(
            "t", number, [NodeId(number % 4)], size_bytes=50.0, bytes_in=rate, bytes_out=rate
        )
    plan = make_plan(builder.build())
    assert plan.before.bytes_in.max_over_mean > 1.7
    assert plan.after.bytes_in.max_over_mean < 1.1
    assert plan.after.disk.max_over_mean < 1.06


def test_weights_divide_replicas_and_leaders() -> None:
    before = world(4, [(60, 2)], even=True)
    before.brokers[0] = replace(before.brokers[0], weight=2.0)
    after = before.after(make_plan(before.layout()))
    assert after.counts() == [48, 24, 24, 24]
    assert after.leads() == [24, 12, 12, 12]


def test_leaders_are_evened_by_reordering_alone() -> None:
    nodes = [NodeId(n) for n in range(5)]
    before = World(brokers=brokers(5))
    for number in range(50):
        others = [node for node in nodes[1:] if node != nodes[1 + number % 4]]
        before.replicas["t", number] = (nodes[0], nodes[1 + number % 4], others[0])
    plan = make_plan(before.layout(), Purpose.LEADERS)
    assert plan.bytes_to_copy == 0
    assert before.after(plan).leads() == [10] * 5
    assert plan.leaders_changed == 40


def test_broker_in_maintenance_leads_nothing() -> None:
    before = world(4, [(20, 3)], even=True)
    plan = make_plan(before.layout(), Purpose.LEADERS, not_leading=[NodeId(2)])
    assert before.after(plan).leads()[2] == 0
    assert plan.bytes_to_copy == 0


@given(st.integers(3, 8), st.integers(1, 20), st.integers(0, 3), seeds)
def test_larger_replication_factor_adds_replicas_only(
    count: int, partitions: int, racks: int, seed: int
) -> None:
    before = world(count, [(partitions, 1)], racks=racks, seed=seed, even=True)
    plan = make_plan(before.layout(replication_factor=3), Purpose.REPAIR)
    after = before.after(plan)
    assert {move.goal for move in plan.moves} == {Goal.RESIZE}
    for key, nodes in after.replicas.items():
        assert nodes[0] == before.replicas[key][0]
        assert len(set(nodes)) == 3
    if not racks:
        assert spread(after.counts()) <= 1


def test_smaller_replication_factor_keeps_the_best_replicas() -> None:
    known = brokers(6, racks=3)
    nodes = [NodeId(n) for n in (1, 4, 2, 3)]  # 1 and 4 share a rack
    in_sync = [NodeId(n) for n in (1, 4, 3)]

    def kept(factor: int, leader: int) -> tuple[NodeId, ...]:
        return kept_replicas(
            known, nodes, leader=NodeId(leader), in_sync=in_sync, replication_factor=factor
        )

    assert kept(3, leader=1) == (1, 4, 3), "the replica that is not in sync leaves first"
    assert kept(2, leader=1) == (1, 3), "then one that shares a rack"
    assert kept(1, leader=3) == (3,), "the leader leaves last"
    gone = [replace(one, availability=Availability.GONE) if one.id == 3 else one for one in known]
    assert 3 not in kept_replicas(
        gone, nodes, leader=NodeId(3), in_sync=in_sync, replication_factor=3
    )


def test_unregistered_brokers_count_as_gone() -> None:
    builder = LayoutBuilder(brokers(3))
    builder.add("t", 0, [NodeId(7), NodeId(0)])
    plan = make_plan(builder.build(), Purpose.REPAIR)
    assert [(move.removing, move.goal) for move in plan.moves] == [((7,), Goal.REPAIR)]


def test_repairs_come_first_then_small_moves_then_leaders() -> None:
    before = world(6, [(30, 3), (20, 2)], seed=5, even=False).with_state(0, Availability.GONE)
    moves = make_plan(before.layout()).moves
    stages = [(m.goal is not Goal.REPAIR, not m.adding, m.bytes_to_copy) for m in moves]
    assert stages == sorted(stages)
    assert {stage[:2] for stage in stages} >= {(False, False), (True, False)}


def test_failover_figure_counts_leaders_after_the_loss_of_any_broker() -> None:
    layout = World(
        brokers=brokers(3),
        replicas={
            ("t", 0): (NodeId(0), NodeId(1)),
            ("t", 1): (NodeId(1), NodeId(2)),
            ("t", 2): (NodeId(2), NodeId(0)),
        },
    ).layout()
    leaders = layout.leaders
    assert failover_max_over_mean(layout, layout.replicas, leaders) == pytest.approx(2 / 1.5)


def failover(of: World) -> float:
    layout = of.layout()
    return failover_max_over_mean(layout, layout.replicas, layout.leaders)


def in_pairs(count: int, topics: int) -> World:
    """Every broker's leaderships would all pass to its successor."""
    nodes = [NodeId(n) for n in range(count)]
    made = World(brokers=brokers(count))
    for number in range(topics):
        start = number % count
        other = nodes[(start + 2 + number // count % (count - 2)) % count]
        made.replicas[f"t{number}", 0] = (nodes[start], nodes[(start + 1) % count], other)
    return made


def test_loss_of_any_broker_spreads_its_leaderships() -> None:
    before = in_pairs(8, 480)
    plan = make_plan(before.layout(), Purpose.LEADERS)
    assert failover(before) > 1.7
    assert failover(before.after(plan)) <= 1.2
    assert {move.goal for move in plan.moves} == {Goal.HEIRS}
    assert plan.leaders_changed == plan.replicas_moved == 0
    assert not make_plan(before.after(plan).layout(), Purpose.LEADERS).moves


def test_heirs_that_are_nearly_even_are_not_reordered() -> None:
    before = world(8, [(64, 3)] * 5, seed=3, even=True)
    before.sizes.clear()
    first, second, third = before.replicas["t0", 0]
    before.replicas["t0", 0] = (first, third, second)
    assert 1.02 < failover(before) < 1.2
    assert not make_plan(before.layout()).moves


def test_moved_partitions_get_heirs_that_even_the_load() -> None:
    before = world(9, [(1, 3)] * 300, seed=3, even=True)
    before.sizes.clear()
    before.brokers.append(PlacementBroker(id=NodeId(99)))
    plan = make_plan(before.layout())
    unordered = dict(before.replicas)
    for move in plan.moves:
        leader, *followers = move.after
        unordered[move.topic, move.partition] = (leader, *sorted(followers))
    by_number = World(brokers=before.brokers, replicas=unordered)
    assert failover(before.after(plan)) < failover(by_number)


def test_pinned_partitions_keep_their_heirs() -> None:
    before = in_pairs(8, 480)
    before.pinned = list(before.replicas)
    assert not make_plan(before.layout(), Purpose.LEADERS).moves


@given(st.integers(2, 8), topic_lists, st.integers(0, 3), seeds)
def test_order_of_followers_changes_nothing_else(
    count: int, topics: list[tuple[int, int]], racks: int, seed: int
) -> None:
    before = world(count, topics, racks=racks, seed=seed, even=False)
    for purpose in Purpose:
        for move in make_plan(before.layout(), purpose).moves:
            if move.goal is Goal.HEIRS:
                assert move.before[0] == move.after[0]
                assert sorted(move.before) == sorted(move.after)
                assert move.before != move.after
                assert purpose is not Purpose.REPAIR


def with_rates(of: World, seed: int, pinned: bool = False) -> ClusterLayout:
    """Partitions of one topic in four send twenty times as much."""
    rng = random.Random(seed)
    builder = LayoutBuilder(of.brokers)
    for (topic, number), nodes in of.replicas.items():
        rate = 20.0 if rng.randrange(4) == 0 else 1.0
        builder.add(topic, number, nodes, bytes_in=1.0, bytes_out=rate, is_pinned=pinned)
    return builder.build()


@pytest.mark.parametrize("seed", range(5))
def test_bytes_out_are_evened_by_other_leaders_alone(seed: int) -> None:
    before = world(6, [(48, 3)] * 4, seed=seed, even=True)
    plan = make_plan(with_rates(before, seed))
    after = before.after(plan)
    assert plan.before.bytes_out.max_over_mean > 1.1
    assert plan.after.bytes_out.spread < 20, "the size of one partition"
    assert plan.bytes_to_copy == plan.replicas_moved == 0
    assert {move.goal for move in plan.moves if move.before[0] != move.after[0]} == {Goal.BYTES_OUT}
    assert after.counts() == before.counts()
    assert spread(after.leads()) <= 1
    for topic in after.topics():
        assert spread(after.topic(topic).leads()) <= 1
    assert not make_plan(with_rates(after, seed)).leaders_changed


def test_busy_partitions_of_one_leader_pass_to_others() -> None:
    builder = LayoutBuilder(brokers(3))
    for number in range(30):
        nodes = [NodeId((number + step) % 3) for step in range(3)]
        builder.add("t", number, nodes, bytes_in=1.0, bytes_out=0.0 if number % 3 else 100.0)
    plan = make_plan(builder.build())
    assert plan.before.bytes_out.max_over_mean > 2.5
    assert plan.after.bytes_out.max_over_mean < 1.25, "ten busy partitions of three brokers"
    assert plan.after.leaders.spread == 0


@given(st.integers(1, 8), topic_lists, st.integers(0, 3), seeds)
def test_even_bytes_out_undo_no_earlier_goal(
    count: int, topics: list[tuple[int, int]], racks: int, seed: int
) -> None:
    before = world(count, topics, racks=racks, seed=seed, even=False)
    layout = with_rates(before, seed)
    plan = make_plan(layout)
    check_rules(before, plan)
    layout.bytes_out = array("d", [1.0]) * layout.partitions
    plain = make_plan(layout)  # all partitions send the same
    assert plan.after.replicas == plain.after.replicas
    assert plan.after.bytes_in == plain.after.bytes_in
    assert plan.after.disk == plain.after.disk
    assert plan.after.leaders.spread <= max(plain.after.leaders.spread, 1)
    assert plan.after.topic_leader_spread <= max(plain.after.topic_leader_spread, 1)
    assert make_plan(with_rates(before, seed)) == plan, "deterministic"


def test_leaders_of_pinned_partitions_stay_where_they_are() -> None:
    before = world(6, [(48, 3)] * 4, seed=1, even=True)
    assert not make_plan(with_rates(before, 1, pinned=True)).moves
