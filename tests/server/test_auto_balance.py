"""Plans that the controller makes: suggested, started, withdrawn; the planner in its process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.balance import PartitionLoad, PartitionLoads
from riverrun.cluster.balancing.execution import ROLLED_BACK, advance, end
from riverrun.cluster.balancing.executor import PlanExecutor
from riverrun.cluster.balancing.plans import plan_ids, plan_of, plan_record, progress_of
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.balancing.submission import REPAIRED, cancel_plan, submit_plan
from riverrun.cluster.balancing.suggestion import suggestion_of
from riverrun.cluster.configs.node_configs import Configs
from riverrun.metadata.image import Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord, ConfigRecord
from riverrun.metadata.registrations import FENCED
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import BrokerLoad
from riverrun.placement.planner.plan import Goal, Plan, PlannedMove, Purpose
from riverrun.placement.planner.process import PlanTask, run_task
from riverrun.placement.planner.schedule import MoveLimits
from riverrun.placement.planner.stored_plan import (
    PlanEnd,
    PlanHeader,
    PlanProgress,
    PlanResult,
    encode,
    submitted_texts,
)
from riverrun.server.controller_link.auto_balance import AutoBalance, plan_in_process
from riverrun.storage.settings import LogSettings
from tests.cluster.fakes import FakeClock, MemoryLog, declared, registration, replayed
from tests.cluster.states import NAME, P, cluster, setting

ONE, TWO, THREE, FOUR = (NodeId(node) for node in range(1, 5))
JOINED = [P(1, (1, 2, 3)), P(2, (1, 2, 3), replicas=(2, 3, 1))] * 4


class Harness:
    """An AutoBalance on a metadata log in memory, with a planner that counts its calls."""

    def __init__(self, image: Image, texts: Mapping[str, str]) -> None:
        self.log = MemoryLog(image)
        self.clock = FakeClock()
        self.plans = 0
        self.configs = configs = Configs(
            (*declared(), *BalanceSettings.declared()),
            given=texts,
            node_id=NodeId(1),
            log=LogSettings.from_texts({}),
        )
        self.auto = AutoBalance(
            ActiveController(self.log, configs, clock=self.clock),
            self.log,
            configs,
            BalanceSettings.from_texts(texts),
            self.clock,
            loads=self._loads,
            planner=self._plan,
        )

    async def _loads(self) -> PartitionLoads:
        return {(NAME, n): PartitionLoad(size_bytes=100.0) for n in range(8)}

    async def _plan(self, task: PlanTask) -> Plan:
        self.plans += 1
        return run_task(task)

    def check(self) -> Image:
        asyncio.run(self.auto.check())
        return self.log.newest


def test_suggestion_is_made_once_and_withdrawn_when_the_cluster_is_even() -> None:
    harness = Harness(cluster(*JOINED, brokers=(1, 2, 3, 4)), {})
    found = suggestion_of(harness.check())
    assert found is not None
    assert found.moves > 0
    assert found.bytes_to_copy > 0
    assert plan_ids(harness.log.newest) == []
    harness.check()
    assert harness.plans == 1
    harness.log.newest = replayed(harness.log.newest, [setting("balance.mode", "off")])
    assert suggestion_of(harness.check()) is None


def test_automatic_mode_starts_the_plan_with_its_throttle() -> None:
    harness = Harness(
        cluster(*JOINED, brokers=(1, 2, 3, 4)), {"balance.mode": "auto", "balance.throttle": "700"}
    )
    image = harness.check()
    (plan_id,) = plan_ids(image)
    plan = plan_of(image, plan_id)
    assert plan is not None
    assert plan.header.requester == "controller"
    assert plan.header.throttle == 700
    assert "broker 4" in plan.header.reason
    assert plan.moves
    harness.check()
    assert plan_ids(harness.log.newest) == [plan_id], "one plan at a time"


def test_broker_that_stays_away_is_replaced_in_automatic_mode() -> None:
    partitions = [P(1, (1, 2), replicas=(1, 2, 3))] * 3
    harness = Harness(
        cluster(*partitions, brokers=(1, 2, 3, 4), fenced=(3,)), {"balance.mode": "auto"}
    )
    assert plan_ids(harness.check()) == []
    harness.clock.now += 30 * 60.0
    image = harness.check()
    (plan_id,) = plan_ids(image)
    plan = plan_of(image, plan_id)
    assert plan is not None
    assert all(3 not in move.after for move in plan.moves)
    assert len(plan.moves) == 3


def test_broker_is_replaced_while_a_long_plan_runs() -> None:
    partitions = [P(1, (1, 2), replicas=(1, 2, 3))] * 4
    image = cluster(*partitions, brokers=(1, 2, 3, 4, 5), fenced=(3,))
    moves = [
        PlannedMove(
            topic=NAME, partition=number, before=before, after=after, leader=None,
            goal=Goal.REPLICAS, size_bytes=1.0, bytes_in=0.0,
        )
        for before, after in [((ONE, TWO, THREE), (FOUR, TWO, THREE))]
        for number in range(4)
    ]  # fmt: skip
    header = PlanHeader(reason="cluster balance")
    image = replayed(image, submit_plan(image, "long", submitted_texts(header, moves)))
    harness = Harness(image, {"balance.mode": "auto", "self.healing.timeout": "60000"})
    plan = plan_of(image, "long")
    assert plan is not None
    limits = MoveLimits(per_destination=1)
    step = advance(harness.configs, image, plan, limits=limits)
    harness.log.newest = replayed(image, step.records)
    assert len(plan_ids(harness.check())) == 1
    harness.clock.now += 60.0
    image = harness.check()
    long, repair = (plan_of(image, one) for one in plan_ids(image))
    assert long is not None
    assert repair is not None
    assert repair.header.is_repair
    assert repair.header.causes == ("away 3",)
    assert [move.partition for move in repair.moves] == [1, 2, 3]
    assert long.dropped == dict.fromkeys((1, 2, 3), REPAIRED)
    assert long.progress == PlanProgress(moving=(0,), dropped=3)
    assert PlanExecutor(harness.configs).due(image, 0) == [repair.id, "long"]
    harness.check()
    assert len(plan_ids(harness.log.newest)) == 2


def test_broker_is_replaced_while_the_repair_of_another_runs() -> None:
    partitions = [P(1, (1, 2), replicas=(1, 2, 3))] * 3 + [P(1, (1, 2), replicas=(1, 2, 4))] * 3
    image = cluster(*partitions, brokers=range(1, 9), fenced=(3,))
    harness = Harness(image, {"balance.mode": "auto", "self.healing.timeout": "60000"})
    harness.check()
    harness.clock.now += 60.0
    (first,) = plan_ids(harness.check())
    epoch = image.brokers[FOUR].epoch
    died = BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=epoch, fenced=FENCED)
    harness.log.newest = replayed(harness.log.newest, [died])
    harness.check()
    harness.clock.now += 60.0
    image = harness.check()
    (second,) = (one for one in plan_ids(image) if one != first)
    plan = plan_of(image, second)
    assert plan is not None
    assert plan.header.causes == ("away 4",)
    assert [move.partition for move in plan.moves] == [3, 4, 5]
    assert all(FOUR in move.removing for move in plan.moves)
    harness.clock.now += 3600.0
    assert plan_ids(harness.check()) == [first, second]


NEWER = [{"plan": "[]"}, {"progress": "[]"}, {"dropped.0000": "[]"}, {"rate.all": "[]"}]


@pytest.mark.parametrize("texts", NEWER)
def test_plan_of_a_newer_version_counts_as_running(texts: dict[str, str]) -> None:
    header = PlanHeader(reason="cluster balance")
    known = {**submitted_texts(header, ()), **texts}
    image = cluster(*JOINED, brokers=(1, 2, 3, 4))
    image = replayed(image, [plan_record("newer", name, text) for name, text in known.items()])
    harness = Harness(image, {"balance.mode": "auto"})
    assert plan_ids(harness.check()) == ["newer"]
    assert harness.plans == 0
    assert progress_of(image, "newer") == PlanProgress()
    result = PlanResult(end=PlanEnd.DONE, ended_ms=1, done=1, dropped=0)
    ended = [plan_record("newer", "result", encode(result))]
    harness.log.newest = replayed(harness.log.newest, ended)
    harness.clock.now += 1.0
    harness.check()
    harness.clock.now += 300.0
    assert len(plan_ids(harness.check())) == 2


def test_time_of_absence_goes_on_after_a_change_of_controller() -> None:
    partitions = [P(1, (1, 2), replicas=(1, 2, 3))] * 3
    image = cluster(*partitions, brokers=(1, 2, 3, 4), fenced=(3,))
    first = Harness(image, {"balance.mode": "auto"})
    first.check()
    first.clock.now += 29 * 60.0
    second = Harness(first.check(), {"balance.mode": "auto"})
    second.clock.now = first.clock.now
    assert plan_ids(second.check()) == []
    second.clock.now += 60.0
    assert len(plan_ids(second.check())) == 1


def test_repair_that_was_rolled_back_is_not_planned_again_at_once() -> None:
    partitions = [P(1, (1, 2), replicas=(1, 2, 3))] * 3
    harness = Harness(
        cluster(*partitions, brokers=(1, 2, 3, 4), fenced=(3,)),
        {"balance.mode": "auto", "self.healing.timeout": "1000"},
    )
    harness.check()
    harness.clock.now += 1.0
    (plan_id,) = plan_ids(harness.check())
    harness.clock.now += 500.0
    harness.check()
    ending = cancel_plan(harness.configs, harness.log.newest, plan_id)
    harness.log.newest = replayed(harness.log.newest, ending)
    harness.check()
    assert harness.plans == 1
    harness.clock.now += 60.0
    harness.check()
    assert harness.plans == 2


PAIRS = [P(1, (1, 3), replicas=(1, 3)), P(2, (2, 3), replicas=(2, 3))] * 8


def unmendable(others: Sequence[P] = PAIRS) -> Image:
    """One partition shares a rack and is short of in-sync replicas, so it must not move; broker 4
    has just joined."""
    fixed = P(1, (1,), replicas=(1, 2))
    image = cluster(fixed, *others, brokers=(1, 2, 3, 4))
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    brokers = {node: replace(one, rack=racks[node]) for node, one in image.brokers.items()}
    return replace(image, brokers=brokers)


def test_rack_rule_that_cannot_be_mended_does_not_hold_up_balancing() -> None:
    harness = Harness(unmendable(), {"balance.mode": "auto"})
    assert plan_ids(harness.check()) == []
    (plan_id,) = plan_ids(harness.check())
    assert plan_id.startswith("balance-")


def test_need_with_an_empty_plan_is_planned_again_after_a_change_or_a_long_pause() -> None:
    harness = Harness(unmendable(others=()), {})
    harness.check()
    for _ in range(5):
        harness.clock.now += 60.0
        harness.check()
    assert harness.plans == 1
    image = harness.log.newest
    harness.log.newest = replace(image, topics_by_id={**image.topics_by_id})
    for _ in range(59):
        harness.check()
        harness.clock.now += 60.0
    assert harness.plans == 2
    harness.clock.now += 60.0
    harness.check()
    assert harness.plans == 3


def with_topics_changed(image: Image) -> Image:
    return replace(image, topics_by_id={**image.topics_by_id})


def test_changes_of_topics_double_the_pause_after_an_empty_plan() -> None:
    harness = Harness(unmendable(others=()), {})
    planned: list[int] = []
    for minute in range(20):
        before = harness.plans
        harness.log.newest = with_topics_changed(harness.log.newest)
        harness.check()
        if harness.plans > before:
            planned.append(minute)
        harness.clock.now += 60.0
    assert planned == [0, 1, 3, 7, 15]


@pytest.mark.parametrize("change", ["joined", "back", "capacity", "disk", "mode"])
def test_changed_brokers_are_planned_for_at_once_after_many_empty_plans(change: str) -> None:
    image = unmendable(others=())
    away = [
        BrokerRegistrationChangeRecord(
            broker_id=4, broker_epoch=image.brokers[FOUR].epoch, fenced=FENCED
        )
    ]
    image = replayed(image, [*away, setting("min.insync.replicas", "2")])
    harness = Harness(image, {})
    placement = harness.auto._controller.placement
    placement.loads = {ONE: BrokerLoad(disk_capacity=1000)}
    for _ in range(100):
        harness.log.newest = with_topics_changed(harness.log.newest)
        harness.check()
        harness.clock.now += 60.0
    known = harness.log.newest
    count = harness.plans
    placement.loads = {ONE: BrokerLoad(disk_capacity=1050)}
    harness.check()
    assert harness.plans == count
    match change:
        case "joined":
            known = replayed(known, [registration(known, 5, "b")])
        case "back":
            four = replace(known.brokers[FOUR], is_fenced=False)
            known = replace(known, brokers={**known.brokers, FOUR: four})
        case "disk":
            placement.loads = {ONE: BrokerLoad(disk_capacity=2000)}
        case "capacity" | _:
            name = "broker.capacity.weight" if change == "capacity" else "broker.mode"
            text = "2" if change == "capacity" else "maintenance"
            record = ConfigRecord(resource_type=4, resource_name="3", name=name, value=text)
            known = replayed(known, [record])
    harness.log.newest = known
    harness.check()
    assert harness.plans == count + 1
    for _ in range(2):
        harness.clock.now += 60.0
        harness.log.newest = with_topics_changed(harness.log.newest)
        harness.check()
    assert harness.plans == count + 2, "the pause is a minute again"


def test_plan_whose_moves_were_rolled_back_is_made_again_later_each_time() -> None:
    partitions = [P(1, (1, 2), replicas=(1, 2, 3))] * 3
    texts = {"balance.mode": "auto", "self.healing.timeout": "1000"}
    harness = Harness(cluster(*partitions, brokers=(1, 2, 3, 4), fenced=(3,)), texts)
    harness.check()
    for minutes in (2, 4, 8):
        harness.clock.now += 60.0
        image = harness.check()
        plan_id = plan_ids(image)[-1]
        plan = plan_of(image, plan_id)
        assert plan is not None
        assert plan.is_running
        every = dict.fromkeys(range(3), f"{ROLLED_BACK}the disk of node 4 is full")
        ending = end(image, plan, 0, every, (), PlanEnd.DONE, harness.clock.now_ms())
        harness.log.newest = replayed(image, ending)
        count = harness.plans
        for _ in range(minutes):
            harness.check()
            harness.clock.now += 60.0
        assert harness.plans == count
        harness.clock.now -= 60.0


def test_outage_is_shown_also_after_a_need_with_an_empty_plan() -> None:
    harness = Harness(unmendable(), {"self.healing.timeout": "1000"})
    harness.check()
    image = harness.log.newest
    away = [
        BrokerRegistrationChangeRecord(
            broker_id=node, broker_epoch=image.brokers[NodeId(node)].epoch, fenced=FENCED
        )
        for node in (1, 2)
    ]
    harness.log.newest = replayed(image, away)
    harness.check()
    harness.clock.now += 2.0
    found = suggestion_of(harness.check())
    assert found is not None
    assert found.held_back is not None


def test_planner_process_gives_the_same_plan_as_the_function() -> None:
    harness = Harness(cluster(*JOINED, brokers=(1, 2, 3, 4)), {})
    tasks: list[PlanTask] = []

    async def keep(task: PlanTask) -> Plan:
        tasks.append(task)
        return run_task(task)

    harness.auto._planner = keep
    harness.check()
    (task,) = tasks
    assert task.purpose is Purpose.BALANCE
    assert asyncio.run(plan_in_process(task)) == run_task(task)
