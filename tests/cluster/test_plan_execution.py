"""Plans of the active controller: steps, throttles, ends, submission and cancels."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from riverrun.cluster.balancing import execution
from riverrun.cluster.balancing.absences import absence_records
from riverrun.cluster.balancing.destinations import AWAY_MS_MAX
from riverrun.cluster.balancing.execution import CANCELLED, DELETED, advance
from riverrun.cluster.balancing.executor import PlanExecutor
from riverrun.cluster.balancing.plans import PlanReader, plan_of, plan_record
from riverrun.cluster.balancing.rollbacks import rollback_records
from riverrun.cluster.balancing.submission import (
    ENDED_KEPT,
    REPAIRS_MAX,
    RUNNING_MAX,
    cancel_plan,
    running_plans,
    submit_plan,
    submit_repair,
)
from riverrun.cluster.balancing.throttling import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
)
from riverrun.cluster.partitions.reassignment import alter_partition_reassignments
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
)
from riverrun.metadata.registrations import FENCED
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.placement.planner.plan import Goal, PlannedMove
from riverrun.placement.planner.schedule import MoveLimits
from riverrun.placement.planner.stored_plan import (
    HEADER,
    MOVES,
    MOVES_MAX,
    PlanEnd,
    PlanHeader,
    PlanResult,
    StoredPlan,
    StoredRollback,
    decode_plan,
    encode,
    submitted_texts,
)
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import NAME, TOPIC, P, cluster, setting

CONFIGS = make_configs()
FIVE = (1, 2, 3, 4, 5)
SIX_OF_THREE = (P(1, (1, 2, 3)),) * 6


def move(partition: int, after: tuple[int, ...]) -> PlannedMove:
    return PlannedMove(
        topic=NAME,
        partition=partition,
        before=(NodeId(1), NodeId(2), NodeId(3)),
        after=tuple(NodeId(n) for n in after),
        leader=None,
        goal=Goal.REPLICAS,
        size_bytes=1000.0,
        bytes_in=0.0,
    )


def submitted(
    image: Image, *moves: PlannedMove, plan_id: str = "p", throttle: int | None = None
) -> Image:
    header = PlanHeader(reason="test", throttle=throttle)
    return replayed(image, submit_plan(image, plan_id, submitted_texts(header, moves)))


def stepped(
    image: Image, plan_id: str = "p", limits: MoveLimits | None = None, now_ms: int = 9
) -> Image:
    plan = plan_of(image, plan_id)
    assert plan is not None
    others = [one for one in running_plans(image) if one.id != plan_id]
    step = advance(CONFIGS, image, plan, others=others, limits=limits, now_ms=now_ms)
    return replayed(image, step.records)


def stored(image: Image, plan_id: str = "p") -> StoredPlan:
    plan = plan_of(image, plan_id)
    assert plan is not None
    return plan


def result(image: Image, plan_id: str = "p") -> PlanResult:
    found = stored(image, plan_id).result
    assert found is not None
    return found


def copied(image: Image, partition: int) -> Image:
    """The new replicas of a partition join the in-sync set, which ends the reassignment."""
    now = image.topics_by_name[NAME].partitions[partition]
    target = tuple(node for node in now.replicas if node not in now.removing)
    leader = now.leader if now.leader in target else target[0]
    record = PartitionChangeRecord(
        partition_id=partition, topic_id=TOPIC, replicas=target, isr=target, leader=leader,
        adding_replicas=(), removing_replicas=(), directories=now.directories[: len(target)],
    )  # fmt: skip
    return replayed(image, [record])


def rolled_back(image: Image, partition: int) -> Image:
    record = PartitionChangeRecord(
        partition_id=partition, topic_id=TOPIC, replicas=(2, 3, 1), isr=(1, 2, 3),
        adding_replicas=(), removing_replicas=(),
        directories=image.topics_by_name[NAME].partitions[partition].directories[:3],
    )  # fmt: skip
    return replayed(image, [record])


def replicas(image: Image, partition: int) -> tuple[NodeId, ...]:
    found = image.partition(TopicName(NAME), PartitionIndex(partition))
    assert found is not None
    return found.replicas


def throttles(image: Image) -> dict[str, str]:
    """All settings of throttles, as resource and name."""
    return {
        f"{resource} {name}": text
        for (kind, resource), texts in image.configs.items()
        if kind is not ConfigType.PLAN
        for name, text in texts.items()
        if "throttled" in name
    }


def test_plan_starts_moves_within_its_limits_and_ends_with_a_result() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(3)])
    assert stored(image).progress.waiting == 3
    limits = MoveLimits(per_destination=2)
    image = stepped(image, limits=limits)
    assert stored(image).progress.moving == (0, 1)
    assert replicas(image, 0) == (4, 2, 3, 1)
    assert replicas(image, 2) == (1, 2, 3)
    image = stepped(copied(image, 0), limits=limits)
    assert stored(image).progress.moving == (1, 2)
    image = stepped(copied(copied(image, 1), 2), limits=limits)
    assert result(image) == PlanResult(end=PlanEnd.DONE, ended_ms=9, done=3, dropped=0)
    assert stored(image).moves == ()
    assert running_plans(image) == []


def test_step_without_news_has_no_records() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)), throttle=5)
    image = stepped(image)
    assert advance(CONFIGS, image, stored(image)).records == ()


def test_steps_that_know_the_open_moves_are_the_same_as_those_that_do_not() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4 + n % 2, 2, 3)) for n in range(6)], throttle=9)
    known: tuple[int, ...] | None = None
    limits = MoveLimits(per_destination=1)
    for number in range(6):
        plan = stored(image)
        step = advance(CONFIGS, image, plan, still_open=known, limits=limits)
        assert step.records == advance(CONFIGS, image, plan, limits=limits).records
        image, known = replayed(image, step.records), step.open
        assert stored(image).progress.done == number
        image = copied(image, number) if number in stored(image).progress.moving else image
    assert known is not None
    assert 0 not in known


def test_plan_larger_than_a_step_examines_is_run_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "EXAMINED_MAX", 2)
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(6)])
    steps = 0
    while stored(image).is_running:
        image = stepped(image)
        for number in stored(image).progress.moving:
            image = copied(image, number)
        steps += 1
    assert steps == 4
    assert result(image).done == 6


def test_plan_of_a_newer_version_waits_and_others_go_on() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)))
    texts = image.configs[ConfigType.PLAN, "p"]
    name = next(name for name in texts if name.startswith(MOVES))
    newer = texts[name].replace(f",{Goal.REPLICAS.value},", ",99,")
    assert newer != texts[name]
    image = replayed(image, [plan_record("p", name, newer)])
    image = submitted(image, move(1, (1, 4, 3)), plan_id="q")
    assert [plan.id for plan in PlanReader().plans(image)] == ["q"]
    assert replicas(stepped(image, "q"), 1) == (1, 4, 3, 2)
    with pytest.raises(KafkaError) as error:
        cancel_plan(CONFIGS, image, "p")
    assert error.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_limits_count_the_moves_of_other_plans() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, move(0, (4, 2, 3)), plan_id="one")
    image = submitted(image, move(1, (4, 2, 3)), plan_id="two")
    image = stepped(image, "one")
    image = stepped(image, "two", limits=MoveLimits(per_destination=1))
    assert stored(image, "two").progress.moving == ()
    image = stepped(copied(image, 0), "two", limits=MoveLimits(per_destination=1))
    assert stored(image, "two").progress.moving == (0,), "the move of one has ended"


def test_moved_partition_is_led_by_its_first_replica() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 1, 2)))
    image = copied(stepped(image), 0)
    assert image.topics_by_name[NAME].partitions[0].leader == 1
    image = stepped(image)
    assert image.topics_by_name[NAME].partitions[0].leader == 4
    assert result(image).done == 1


def test_result_names_the_reason_of_a_rollback() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = stepped(submitted(image, move(0, (4, 2, 3))))
    why = StoredRollback(reason="disk", text="the disk of node 4 is full", replica=4, at_ms=1)
    image = replayed(image, rollback_records(image, {f"{NAME}-0": encode(why)}))
    image = stepped(rolled_back(image, 0))
    assert result(image).failures == {f"{NAME}-0": "rolled back: the disk of node 4 is full"}
    assert result(image).rolled_back == 1


def test_reason_of_an_earlier_rollback_is_not_that_of_a_later_cancel() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    why = StoredRollback(reason="disk", text="the disk of node 5 is full", replica=5, at_ms=1)
    image = replayed(image, rollback_records(image, {f"{NAME}-0": encode(why)}))
    image = stepped(submitted(image, move(0, (4, 2, 3))))
    image = stepped(rolled_back(image, 0))
    assert result(image).failures == {f"{NAME}-0": CANCELLED}


def test_reordered_partition_changes_its_leader() -> None:
    image = submitted(cluster(*SIX_OF_THREE), move(0, (3, 1, 2)))
    image = stepped(stepped(image))
    assert replicas(image, 0) == (3, 1, 2)
    assert image.topics_by_name[NAME].partitions[0].leader == 3
    assert result(image).done == 1


def test_cancelled_move_is_dropped_with_a_reason_and_not_started_again() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = stepped(submitted(image, move(0, (4, 2, 3)), move(1, (5, 2, 3)), throttle=7))
    image = stepped(rolled_back(image, 0))
    assert stored(image).dropped == {0: CANCELLED}
    assert stored(image).progress.moving == (1,)
    assert "0:4" not in throttles(image)[f"{NAME} {FOLLOWER_LIST}"]
    image = stepped(copied(image, 1))
    assert result(image).failures == {f"{NAME}-0": CANCELLED}
    assert (result(image).done, result(image).dropped) == (1, 1)
    assert throttles(image) == {}


LEADER_LAST = (2, 3, 4)
"""A target for 1, 2, 3 from which their order does not follow, unless 1 leads."""


def test_cancelled_plan_restores_the_order_of_replicas() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, LEADER_LAST))
    image = stepped(image)
    assert replicas(image, 0) == (2, 3, 4, 1)
    image = replayed(image, cancel_plan(CONFIGS, image, "p"))
    assert replicas(image, 0) == (1, 2, 3)


def test_move_cancelled_by_a_request_returns_to_the_order_from_before() -> None:
    image = stepped(submitted(cluster(P(2, (1, 2, 3)), brokers=FIVE), move(0, LEADER_LAST)))
    image = replayed(image, alter_partition_reassignments(CONFIGS, image, CANCEL).records)
    assert replicas(image, 0) == (2, 3, 1)
    image = stepped(image)
    assert replicas(image, 0) == (1, 2, 3)
    assert result(image).failures == {f"{NAME}-0": CANCELLED}


def test_order_that_somebody_chose_stays() -> None:
    image = stepped(submitted(cluster(P(2, (1, 2, 3)), brokers=FIVE), move(0, LEADER_LAST)))
    image = replayed(image, alter_partition_reassignments(CONFIGS, image, CANCEL).records)
    chosen = PartitionChangeRecord(partition_id=0, topic_id=TOPIC, replicas=(3, 2, 1))
    image = stepped(replayed(image, [chosen]))
    assert replicas(image, 0) == (3, 2, 1)


CANCEL = AlterPartitionReassignmentsRequest(
    topics=(
        ReassignableTopic(
            name=NAME, partitions=(ReassignablePartition(partition_index=0, replicas=None),)
        ),
    )
)


def test_refused_target_is_dropped_and_the_others_go_on() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)), move(1, (5, 2, 3)))
    mode = ConfigRecord(
        resource_type=4, resource_name="4", name="broker.mode", value="decommissioning"
    )
    image = stepped(replayed(image, [mode]))
    assert "decommissioned" in stored(image).dropped[0]
    assert stored(image).progress.moving == (1,)


def fenced(image: Image, node: int, since_ms: int = 0) -> Image:
    """The image after a broker was fenced, as the controller saw it at ``since_ms``."""
    known = image.brokers[NodeId(node)]
    away = BrokerRegistrationChangeRecord(broker_id=node, broker_epoch=known.epoch, fenced=FENCED)
    image = replayed(image, [away])
    return replayed(image, absence_records(image, since_ms))


def test_moves_to_a_fenced_broker_wait_and_the_others_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "EXAMINED_MAX", 2)
    image = fenced(cluster(*SIX_OF_THREE, brokers=FIVE), 4)
    image = submitted(image, *[move(n, (4 if n < 4 else 5, 2, 3)) for n in range(6)])
    image = stepped(image)
    assert stored(image).progress.moving == (4, 5)
    assert stored(image).dropped == {}
    back = stepped(replace(image, brokers=cluster(brokers=FIVE).brokers))
    assert stored(back).progress.moving == (4, 5, 0, 1)


def test_moves_to_a_broker_that_stays_away_are_dropped_and_cancelled() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(5)], move(5, (5, 2, 3)))
    image = fenced(stepped(image, limits=MoveLimits(per_destination=2)), 4, since_ms=1000)
    before = stepped(image, now_ms=1000 + AWAY_MS_MAX - 1)
    assert stored(before).progress.moving == (0, 1, 5)
    assert stored(before).progress.waiting == 3
    after = stepped(image, now_ms=1000 + AWAY_MS_MAX)
    assert stored(after).progress.moving == (5,)
    assert stored(after).dropped == {
        **dict.fromkeys((0, 1), "rolled back: broker 4 is away"),
        **dict.fromkeys((2, 3, 4), "broker 4 is away"),
    }
    assert sorted(replicas(after, 0)) == [1, 2, 3]
    ended = stepped(copied(after, 5))
    assert (result(ended).done, result(ended).dropped) == (1, 5)


def test_move_whose_cancel_is_refused_goes_on() -> None:
    image = stepped(submitted(cluster(P(1, (1,)), brokers=FIVE), move(0, (4, 5, 1))))
    isr = PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=(1, 5))
    image = fenced(replayed(image, [isr]), 4)
    image = stepped(image, now_ms=AWAY_MS_MAX)
    assert stored(image).progress.moving == (0,)
    assert stored(image).dropped == {}


def test_moves_to_a_broker_that_is_not_registered_any_more_are_dropped() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(3)])
    image = stepped(image, limits=MoveLimits(per_destination=1))
    epoch = image.brokers[NodeId(4)].epoch
    image = replayed(image, [UnregisterBrokerRecord(broker_id=4, broker_epoch=epoch)])
    image = stepped(image, limits=MoveLimits(per_destination=1))
    assert stored(image).progress.moving == ()
    assert sorted(replicas(image, 0)) == [1, 2, 3]
    assert result(image).failures[f"{NAME}-2"] == "broker 4 is not registered any more"


def test_moves_that_wait_for_a_cordoned_broker_are_dropped_at_once() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(3)])
    image = stepped(image, limits=MoveLimits(per_destination=1))
    known = image.brokers[NodeId(4)]
    cordon = BrokerRegistrationChangeRecord(
        broker_id=4, broker_epoch=known.epoch, cordoned_log_dirs=known.directories
    )
    image = stepped(replayed(image, [cordon]), limits=MoveLimits(per_destination=1))
    assert stored(image).progress.moving == (0,)
    assert stored(image).dropped == dict.fromkeys((1, 2), "broker 4 is cordoned")


def test_executor_looks_again_at_plans_while_a_broker_is_away() -> None:
    image = fenced(cluster(*SIX_OF_THREE, brokers=FIVE), 4)
    image = submitted(image, move(0, (4, 2, 3)))
    executor = PlanExecutor(CONFIGS)
    assert executor.due(image, 0) == ["p"]
    assert executor.advance(image, "p", 0).records == ()
    assert executor.due(image, 1) == []
    assert executor.due(image, AWAY_MS_MAX) == ["p"]
    image = replayed(image, executor.advance(image, "p", AWAY_MS_MAX).records)
    assert result(image).failures == {f"{NAME}-0": "broker 4 is away"}


def test_moves_go_on_after_an_outage_of_more_than_a_third() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(3)])
    image = stepped(image, limits=MoveLimits(per_destination=1))
    outage = fenced(fenced(image, 4), 5)
    after = stepped(outage, now_ms=2 * AWAY_MS_MAX)
    assert stored(after).progress.moving == (0,)
    assert stored(after).dropped == {}
    five = replace(outage.brokers[NodeId(5)], is_fenced=False)
    one_is_back = replace(outage, brokers={**outage.brokers, NodeId(5): five})
    after = stepped(one_is_back, now_ms=2 * AWAY_MS_MAX)
    assert result(after).dropped == 3


def test_new_controller_gives_brokers_a_minute_to_register() -> None:
    image = fenced(cluster(*SIX_OF_THREE, brokers=FIVE), 4)
    image = submitted(image, move(0, (4, 2, 3)))
    executor, now_ms = PlanExecutor(CONFIGS), 2 * AWAY_MS_MAX
    executor.reset(now_ms)
    assert executor.due(image, now_ms) == ["p"]
    assert executor.advance(image, "p", now_ms).records == ()
    now_ms += 59_999
    assert executor.due(image, now_ms) == ["p"]
    assert executor.advance(image, "p", now_ms).records == ()
    image = replayed(image, executor.advance(image, "p", now_ms + 1).records)
    assert result(image).failures == {f"{NAME}-0": "broker 4 is away"}


def test_plan_of_a_deleted_topic_ends_and_leaves_no_throttle() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)), throttle=7)
    image = replayed(stepped(image), [RemoveTopicRecord(topic_id=TOPIC)])
    image = stepped(image)
    assert result(image).failures == {f"{NAME}-0": DELETED}
    assert throttles(image) == {}
    assert (ConfigType.TOPIC, NAME) not in image.configs


def test_throttle_is_set_with_the_moves_and_removed_with_them() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)), throttle=700)
    assert throttles(image) == {}
    image = stepped(image)
    found = throttles(image)
    assert found.pop(f"{NAME} {LEADER_LIST}") == "0:1,0:2,0:3"
    assert found.pop(f"{NAME} {FOLLOWER_LIST}") == "0:4"
    both = (LEADER_RATE, FOLLOWER_RATE)
    assert found == {f"{n} {name}": "700" for n in (1, 2, 3, 4) for name in both}
    assert throttles(stepped(copied(image, 0))) == {}


def test_entries_and_rates_of_others_stay() -> None:
    image = cluster(
        *SIX_OF_THREE, brokers=FIVE, settings={LEADER_LIST: "5:1,0:1", FOLLOWER_LIST: "5:2"}
    )
    own = ConfigRecord(resource_type=4, resource_name="2", name=LEADER_RATE, value="123")
    image = replayed(image, [own])
    before = throttles(image)
    image = stepped(submitted(image, move(0, (4, 2, 3)), throttle=700))
    assert throttles(image)[f"2 {LEADER_RATE}"] == "700"
    assert throttles(image)[f"{NAME} {LEADER_LIST}"] == "5:1,0:1,0:2,0:3"
    assert throttles(stepped(copied(image, 0))) == before


def test_rate_that_somebody_changed_during_the_plan_stays() -> None:
    image = stepped(submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)), throttle=7))
    other = ConfigRecord(resource_type=4, resource_name="4", name=FOLLOWER_RATE, value="99")
    image = stepped(copied(replayed(image, [other]), 0))
    assert throttles(image) == {f"4 {FOLLOWER_RATE}": "99"}


def test_topic_that_throttles_all_replicas_keeps_its_list() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE, settings={LEADER_LIST: "*"})
    image = stepped(submitted(image, move(0, (4, 2, 3)), throttle=7))
    assert throttles(image)[f"{NAME} {LEADER_LIST}"] == "*"
    image = stepped(copied(image, 0))
    assert throttles(image) == {f"{NAME} {LEADER_LIST}": "*"}


@pytest.mark.parametrize("first", ["one", "two"])
@pytest.mark.parametrize("rates", [(5, 5), (5, 9)])
def test_two_plans_with_throttles_leave_nothing_behind(first: str, rates: tuple[int, int]) -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, move(0, (4, 2, 3)), plan_id="one", throttle=rates[0])
    image = submitted(image, move(1, (4, 2, 3)), plan_id="two", throttle=rates[1])
    image = stepped(stepped(image, "one"), "two")
    second = "two" if first == "one" else "one"
    image = stepped(copied(image, 0 if first == "one" else 1), first)
    still = rates[1] if first == "one" else rates[0]
    assert throttles(image)[f"4 {FOLLOWER_RATE}"] == str(still)
    image = stepped(copied(image, 1 if first == "one" else 0), second)
    assert throttles(image) == {}


def test_cancelled_plan_returns_its_moves_and_removes_its_throttle() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    image = submitted(image, *[move(n, (4, 2, 3)) for n in range(3)], throttle=7)
    image = stepped(image, limits=MoveLimits(per_destination=2))
    image = replayed(image, cancel_plan(CONFIGS, image, "p"))
    assert result(image).end is PlanEnd.CANCELLED
    assert (result(image).done, result(image).dropped) == (0, 3)
    assert sorted(replicas(image, 0)) == [1, 2, 3]
    assert throttles(image) == {}
    image = replayed(image, cancel_plan(CONFIGS, image, "p"))
    assert plan_of(image, "p") is None


def test_plan_continues_from_every_step_under_another_controller() -> None:
    """Nothing but the image is needed: a reader without a past decides the same."""
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)), throttle=7)
    reader = PlanReader()
    for _ in range(3):
        (known,), (fresh,) = reader.running(image), PlanReader().running(image)
        assert known == fresh
        assert advance(CONFIGS, image, known) == advance(CONFIGS, image, fresh)
        image = stepped(image)
        if stored(image).progress.moving:
            image = copied(image, 0)
        if not stored(image).is_running:
            return
    pytest.fail("the plan did not end")


def refusal(image: Image, *moves: PlannedMove, plan_id: str = "new") -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        submitted(image, *moves, plan_id=plan_id)
    return caught.value


def test_partition_is_in_one_plan_only() -> None:
    image = submitted(cluster(*SIX_OF_THREE, brokers=FIVE), move(0, (4, 2, 3)))
    assert refusal(image, move(0, (5, 2, 3))).code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert refusal(image, move(1, (5, 2, 3)), plan_id="p").code is ErrorCode.DUPLICATE_RESOURCE
    twice = refusal(image, move(1, (5, 2, 3)), move(1, (4, 2, 3)))
    assert twice.code is ErrorCode.INVALID_REQUEST
    image = rolled_back(stepped(image), 0)
    image = stepped(image)
    assert not stored(image).is_running
    submitted(image, move(0, (5, 2, 3)), plan_id="new")


def test_bad_plans_are_refused_as_a_whole() -> None:
    image = cluster(*SIX_OF_THREE, brokers=FIVE)
    assert refusal(image).code is ErrorCode.INVALID_REQUEST
    unknown = refusal(image, move(0, (9, 2, 3)))
    assert unknown.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal(image, move(0, (4, 2, 3)), plan_id="A b").code is ErrorCode.INVALID_REQUEST
    many = [move(n, (4, 2, 3)) for n in range(MOVES_MAX + 1)]
    assert refusal(image, *many).code is ErrorCode.POLICY_VIOLATION
    for texts in ({HEADER: "{"}, {}, {HEADER: encode(PlanHeader(reason="x")), "progress": "{}"}):
        with pytest.raises(KafkaError):
            submit_plan(image, "new", texts)


def test_number_of_plans_and_of_results_is_limited() -> None:
    image = cluster(*((P(1, (1, 2, 3)),) * 40), brokers=FIVE)
    for number in range(RUNNING_MAX):
        image = submitted(image, move(number, (4, 2, 3)), plan_id=f"run-{number}")
    assert refusal(image, move(39, (4, 2, 3))).code is ErrorCode.POLICY_VIOLATION
    header = PlanHeader(reason="broker 1 is away", purpose="repair")
    for number in range(REPAIRS_MAX):
        repair = submit_repair(image, f"repair-{number}", header, [move(20 + number, (4, 2, 3))])
        image = replayed(image, repair)
    with pytest.raises(KafkaError):
        submit_repair(image, "one-more", header, [move(39, (4, 2, 3))])
    for number in range(RUNNING_MAX):
        image = replayed(image, cancel_plan(CONFIGS, image, f"run-{number}"))
    for number in range(20):
        image = submitted(image, move(number, (4, 2, 3)), plan_id=f"more-{number}")
        image = replayed(image, cancel_plan(CONFIGS, image, f"more-{number}"))
    ended = [one for one in PlanReader().plans(image) if not one.is_running]
    assert len(ended) == ENDED_KEPT


def test_texts_of_a_plan_are_small_and_give_it_back() -> None:
    long = "t" * 249
    moves = [
        PlannedMove(
            topic=long, partition=n, before=tuple(NodeId(2**31 - i) for i in range(1, 6)),
            after=tuple(NodeId(2**30 - i) for i in range(5)), leader=None, goal=Goal.DISK,
            size_bytes=2.0**50, bytes_in=2.0**40,
        )
        for n in range(500)
    ]  # fmt: skip
    texts = submitted_texts(PlanHeader(reason="r", throttle=5), moves)
    assert max(len(text) for text in texts.values()) < 32_767
    plan = decode_plan("p", texts)
    assert list(plan.moves) == moves
    assert plan.header.throttle == 5


def test_setting_of_the_topic_is_not_affected() -> None:
    image = replayed(
        cluster(*SIX_OF_THREE, brokers=FIVE), [setting("retention.ms", "5", topic=NAME)]
    )
    image = stepped(copied(stepped(submitted(image, move(0, (4, 2, 3)), throttle=1)), 0))
    assert image.config(ConfigType.TOPIC, NAME) == {"retention.ms": "5"}
