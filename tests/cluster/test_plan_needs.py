"""When the controller plans by itself: triggers, hysteresis, cool-down, and what holds it back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from riverrun.cluster.balancing.absences import absence_records, away_since_ms
from riverrun.cluster.balancing.back_off import is_backing_off
from riverrun.cluster.balancing.needs import NeedWatch, PlanNeed, RackCheck
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.balancing.suggestion import suggestion_of, suggestion_records
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord, ConfigRecord
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import BrokerLoad
from riverrun.placement.planner.plan import Purpose
from riverrun.placement.planner.stored_plan import (
    PlanEnd,
    PlanHeader,
    PlanResult,
    StoredPlan,
    Suggestion,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import P, cluster

CONFIGS = make_configs()
SETTINGS = BalanceSettings()
EVEN = (P(1, (1, 2, 3)), P(2, (1, 2, 3), replicas=(2, 3, 1)), P(3, (1, 2, 3), replicas=(3, 1, 2)))
MINUTE = 60.0
BALANCING = PlanHeader(reason="cluster balance")
REPAIRING = PlanHeader(reason="broker 4 is away", purpose="repair")


def need(
    watch: NeedWatch,
    image: Image,
    now: float = 0.0,
    *,
    running: tuple[PlanHeader, ...] = (),
    broken_racks: int = 0,
    now_ms: int = 0,
    state: PlacementState | None = None,
) -> PlanNeed | None:
    found = watch.needs(
        CONFIGS,
        image,
        state or PlacementState(),
        SETTINGS,
        now=now,
        now_ms=now_ms,
        running=running,
        broken_racks=broken_racks,
    )
    return found[0] if found else None


def mode(node: int, text: str) -> ConfigRecord:
    return ConfigRecord(resource_type=4, resource_name=str(node), name="broker.mode", value=text)


def test_even_cluster_needs_nothing() -> None:
    assert need(NeedWatch(), cluster(*EVEN)) is None


def test_joined_broker_needs_a_balance() -> None:
    found = need(NeedWatch(), cluster(*EVEN * 4, brokers=(1, 2, 3, 4)))
    assert found is not None
    assert found.purpose is Purpose.BALANCE
    assert "joined 4" in found.causes
    assert found.command == "riverrun cluster balance"


def test_one_broker_among_many_that_holds_nothing_is_noticed() -> None:
    """The most loaded of 21 brokers has only 1.05 of the mean when one is empty."""
    nodes = tuple(range(1, 21))
    partitions = [P(n, (n,), replicas=(n,)) for n in nodes] * 6
    assert need(NeedWatch(), cluster(*partitions, brokers=nodes)) is None
    found = need(NeedWatch(), cluster(*partitions, brokers=(*nodes, 21)))
    assert found is not None
    assert found.causes == ("joined 21",)


def test_broker_is_replaced_after_the_timeout_and_not_a_second_earlier() -> None:
    image, watch = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(3,)), NeedWatch()
    assert need(watch, image, 100.0) is None
    assert need(watch, image, 100.0 + 30 * MINUTE - 1) is None
    found = need(watch, image, 100.0 + 30 * MINUTE)
    assert found is not None
    assert (found.purpose, found.gone) == (Purpose.REPAIR, (3,))
    assert found.command == "riverrun cluster decommission 3"


def test_absence_is_counted_from_before_a_change_of_controller() -> None:
    image = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(3,))
    image = replayed(image, absence_records(image, 1_000_000))
    assert absence_records(image, 1_000_500) == []
    later_ms = 1_000_000 + 29 * 60_000
    watch = NeedWatch()
    assert need(watch, image, 7.0, now_ms=later_ms) is None
    assert need(watch, image, 7.0 + MINUTE - 1, now_ms=0) is None
    found = need(watch, image, 7.0 + MINUTE, now_ms=0)
    assert found is not None
    assert found.gone == (3,)


def test_absence_ends_when_the_broker_is_back() -> None:
    away = cluster(*EVEN, brokers=(1, 2, 3), fenced=(3,))
    away = replayed(away, absence_records(away, 5))
    assert away_since_ms(away) == {3: 5}
    back = replace(away, brokers=cluster(*EVEN, brokers=(1, 2, 3)).brokers)
    assert away_since_ms(replayed(back, absence_records(back, 9))) == {}


def test_broker_that_was_back_counts_from_its_next_absence() -> None:
    there = cluster(*EVEN, brokers=(1, 2, 3, 4, 5))
    away = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(3,))
    watch = NeedWatch()
    need(watch, away, 0.0)
    need(watch, there, 29 * MINUTE)
    assert need(watch, away, 30 * MINUTE) is None
    assert need(watch, away, 61 * MINUTE) is not None


def test_broker_is_replaced_although_a_plan_runs_and_all_else_waits() -> None:
    image, watch = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(3,)), NeedWatch()
    image = replayed(image, [mode(2, "decommissioning")])
    assert need(watch, image, running=(BALANCING,), broken_racks=1) is None
    found = need(watch, image, 30 * MINUTE, running=(BALANCING,), broken_racks=1)
    assert found is not None
    assert found.is_beside_plans
    assert (found.causes, found.gone, found.draining) == (("away 3",), (3,), ())


@pytest.mark.parametrize("cause", ["away 4", "draining 4", "racks"])
def test_broker_is_replaced_while_a_repair_of_something_else_runs(cause: str) -> None:
    image, watch = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(3,)), NeedWatch()
    need(watch, image)
    running = (BALANCING, replace(REPAIRING, causes=(cause,)))
    found = need(watch, image, 30 * MINUTE, running=running, broken_racks=1)
    assert found is not None
    assert found.is_beside_plans
    assert (found.causes, found.gone) == (("away 3",), (3,))


def test_broker_that_a_repair_replaces_is_left_to_it() -> None:
    """A second broker dies while the first one is replaced."""
    image, watch = cluster(*EVEN, brokers=range(1, 8), fenced=(2, 3)), NeedWatch()
    need(watch, image)
    first = replace(REPAIRING, causes=("away 3", "racks"))
    found = need(watch, image, 30 * MINUTE, running=(first,))
    assert found is not None
    assert (found.causes, found.gone) == (("away 2",), (2,))
    second = replace(REPAIRING, causes=("away 2",))
    assert need(watch, image, 30 * MINUTE, running=(first, second)) is None


def test_decommissioned_broker_that_is_away_is_left_to_the_plan_that_runs() -> None:
    image, watch = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(3,)), NeedWatch()
    image = replayed(image, [mode(3, "decommissioning")])
    assert need(watch, image, running=(BALANCING,)) is None
    assert need(watch, image, 31 * MINUTE, running=(BALANCING,)) is None
    assert need(watch, image, 31 * MINUTE) is not None


def test_outage_of_more_than_a_third_heals_nothing_and_says_so() -> None:
    image, watch = cluster(*EVEN, brokers=(1, 2, 3, 4, 5), fenced=(2, 3)), NeedWatch()
    need(watch, image)
    found = need(watch, image, 31 * MINUTE)
    assert found is not None
    assert (found.gone, found.reasons) == ((), ())
    assert found.held_back is not None
    assert found.held_back.startswith("2 of 5 brokers are away")


def test_broker_that_is_away_without_replicas_holds_nothing_up() -> None:
    joined = cluster(*EVEN * 4, brokers=(1, 2, 3, 4, 5), fenced=(5,))
    found = need(NeedWatch(), joined)
    assert found is not None
    assert "joined 4" in found.causes


def test_brokers_that_are_away_without_replicas_do_not_count_as_an_outage() -> None:
    image, watch = cluster(*EVEN, brokers=range(1, 8), fenced=(3, 5, 6, 7)), NeedWatch()
    need(watch, image)
    found = need(watch, image, 31 * MINUTE)
    assert found is not None
    assert (found.gone, found.held_back) == ((3,), None)


def test_draining_broker_with_replicas_needs_a_repair_and_an_empty_one_does_not() -> None:
    image = cluster(*EVEN, brokers=(1, 2, 3, 4, 5))
    found = need(NeedWatch(), replayed(image, [mode(2, "decommissioning")]))
    assert found is not None
    assert found.causes == ("draining 2",)
    empty = need(NeedWatch(), replayed(image, [mode(5, "decommissioning")]))
    assert empty is None or "draining 5" not in empty.causes


def test_nothing_is_balanced_while_a_broker_is_away_or_in_maintenance() -> None:
    nodes = (1, 2, 3, 4)
    assert need(NeedWatch(), cluster(*EVEN * 4, brokers=nodes, fenced=(3,))) is None
    resting = replayed(cluster(*EVEN * 4, brokers=nodes), [mode(1, "maintenance")])
    assert need(NeedWatch(), resting) is None
    assert need(NeedWatch(), cluster(*EVEN * 4, brokers=nodes, fenced=(3,)), broken_racks=2)


def test_cool_down_follows_a_plan_and_repairs_do_not_wait() -> None:
    image, watch = cluster(*EVEN * 4, brokers=(1, 2, 3, 4)), NeedWatch()
    assert need(watch, image, 0.0, running=(BALANCING,)) is None
    assert need(watch, image, 10.0) is None
    assert need(watch, image, 20.0, broken_racks=1) is not None
    assert need(watch, image, 10.0 + 299.0) is None
    assert need(watch, image, 10.0 + 300.0) is not None


def test_balancing_goes_on_below_the_threshold_where_it_began() -> None:
    """Broker 1 leads 1.10 of the mean: too little to begin, too much to stop."""
    slight = [P(1, (1, 2), replicas=(1, 2))] * 11 + [P(2, (1, 2), replicas=(2, 1))] * 9
    uneven = [P(1, (1, 2), replicas=(1, 2))] * 14 + [P(2, (1, 2), replicas=(2, 1))] * 6
    watch = NeedWatch()
    assert need(watch, cluster(*slight, brokers=(1, 2))) is None
    assert need(watch, cluster(*uneven, brokers=(1, 2))) is not None
    assert need(watch, cluster(*slight, brokers=(1, 2))) is not None


def test_uneven_disks_count_only_when_they_are_well_used() -> None:
    image = cluster(*EVEN)
    for used, is_needed in ((30, False), (80, True)):
        state = PlacementState()
        state.loads = {
            NodeId(node): BrokerLoad(
                disk_bytes=used if node == 1 else 20, disk_capacity=100, replicas=3
            )
            for node in (1, 2, 3)
        }
        assert (need(NeedWatch(), image, state=state) is not None) is is_needed


def racks_broken(image: Image, racks: dict[int, str | None]) -> int:
    brokers = {n: replace(one, rack=racks.get(n)) for n, one in image.brokers.items()}
    check = RackCheck(replace(image, brokers=brokers))
    for topic in image.topics_by_name.values():
        at: int | None = 0
        while at is not None:
            at = check.add(topic, at)
    return check.broken if check.is_needed else 0


def test_replicas_in_one_rack_are_counted_if_another_rack_has_brokers() -> None:
    image = cluster(P(1, (1, 2), replicas=(1, 2)), P(1, (1, 3), replicas=(1, 3)))
    assert racks_broken(image, {1: "a", 2: "a", 3: "b"}) == 1
    assert racks_broken(image, {1: "a", 2: "a", 3: "a"}) == 0
    assert racks_broken(image, {1: "a", 2: "a", 3: None}) == 0
    many = cluster(*[P(1, (1, 2), replicas=(1, 2))] * 2500)
    assert racks_broken(many, {1: "a", 2: "a", 3: "b"}) == 2500


def test_racks_are_those_that_a_plan_can_use() -> None:
    """Only brokers that get replicas count, and only replicas that a plan may move."""
    image = cluster(P(1, (1, 2), replicas=(1, 2)), brokers=(1, 2, 3))
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b"}
    assert racks_broken(cordoned(image, 3), racks) == 0
    assert racks_broken(replayed(image, [mode(3, "decommissioning")]), racks) == 0
    assert racks_broken(cordoned(image, 2), racks) == 1, "the other replica can move"
    more = cluster(P(1, (1, 2), replicas=(1, 2)), brokers=(1, 2, 3, 4))
    more = cordoned(cordoned(more, 1), 2)
    assert racks_broken(more, {**racks, 4: "c"}) == 0, "cordoned brokers keep their replicas"


def cordoned(image: Image, node: int) -> Image:
    broker = image.brokers[NodeId(node)]
    cordon = BrokerRegistrationChangeRecord(
        broker_id=node, broker_epoch=broker.epoch, cordoned_log_dirs=broker.directories
    )
    return replayed(image, [cordon])


def ended(number: int, rolled_back: int, causes: tuple[str, ...] = ("leaders",)) -> StoredPlan:
    """A plan of the controller that ended at minute ``number``."""
    return StoredPlan(
        id=f"balance-{number}",
        header=PlanHeader(reason="r", purpose="balance", causes=causes),
        result=PlanResult(
            end=PlanEnd.DONE, ended_ms=number * 60_000, done=1, dropped=0, rolled_back=rolled_back
        ),
    )


def pause(plans: list[StoredPlan], *causes: str) -> int:
    """For how many minutes after minute 100 a need waits."""
    wanted = PlanNeed(purpose=Purpose.BALANCE, causes=causes or ("leaders",), reasons=())
    return next(
        n for n in range(1000) if not is_backing_off(plans, wanted, (100 + n) * 60_000, 300_000)
    )


def test_pause_doubles_with_each_plan_whose_moves_were_rolled_back() -> None:
    assert pause([]) == 0
    assert pause([ended(100, 0)]) == 0
    assert pause([ended(100, 1)]) == 10
    assert pause([ended(90, 5), ended(100, 1)]) == 20
    assert pause([ended(70, 1), ended(80, 0), ended(90, 5), ended(100, 1)]) == 20
    assert pause([ended(90, 5), ended(100, 0)]) == 0
    assert pause([ended(n, 1) for n in range(93, 101)]) == 240


def test_need_with_a_new_cause_does_not_wait_for_rolled_back_plans() -> None:
    assert pause([ended(100, 1)], "leaders", "joined 4") == 0
    assert pause([ended(90, 1, ("joined 4",)), ended(100, 1)], "leaders", "joined 4") == 20
    others = [replace(ended(100, 1), header=PlanHeader(reason="cluster balance"))]
    assert pause(others) == 0


def test_suggestion_is_stored_once_and_withdrawn() -> None:
    image = cluster(*EVEN)
    assert suggestion_records(image, None) == []
    made = Suggestion(reasons=("broker 4 joined",), moves=3, command="riverrun cluster balance")
    stored = replayed(image, suggestion_records(image, made))
    assert suggestion_of(stored) == made
    assert suggestion_records(stored, made) == []
    assert suggestion_of(replayed(stored, suggestion_records(stored, None))) is None
    assert made.text == ("broker 4 joined; 3 moves would help; run `riverrun cluster balance`")
