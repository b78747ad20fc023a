"""A damaged replica leaves service, is fetched again and returns, and never leads meanwhile.

The controller's decision is the real one. The fetchers are fakes that truncate at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.cluster.partitions.assign_replicas_to_dirs import assign_replicas_to_dirs
from riverrun.metadata.image import DIRECTORY_LOST, NO_LEADER, Image, PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, TopicName
from riverrun.replication.partition import Partition
from riverrun.replication.reading import code_for_consumer
from riverrun.replication.repair.repairer import AGAIN_SECONDS, Repairer, ReplicaDisk
from riverrun.replication.repair.steps import ReplicaCondition, Step, next_step
from riverrun.storage.log import Log
from riverrun.wire.messages.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse
from tests.cluster.fakes import make_configs, replayed
from tests.replication.leaders import Leader
from tests.server.requests.leader_node import ME, THREE, TWO, Node, image_of

HOME = UUID(int=500)
INTACT, DAMAGED = ReplicaCondition(is_damaged=False), ReplicaCondition(is_damaged=True)
FULL_SECONDS = 3.0


def state_of(
    leader: NodeId, isr: tuple[NodeId, ...], *, lost: tuple[NodeId, ...] = ()
) -> tuple[Image, PartitionImage]:
    image = image_of(1, leader=leader, isr=isr)
    state = image.topics_by_name[TopicName("topic")].partitions[0]
    places = tuple(DIRECTORY_LOST if node in lost else HOME for node in state.replicas)
    return image, replace(state, directories=places)


@pytest.mark.parametrize(
    ("leader", "isr", "lost", "condition", "step"),
    [
        (ME, (ME, TWO), (), INTACT, Step.NONE),
        (ME, (ME, TWO), (), DAMAGED, Step.REPORT),
        (TWO, (ME, TWO), (), DAMAGED, Step.REPORT),
        (TWO, (TWO,), (), DAMAGED, Step.REPORT),
        (ME, (ME,), (), DAMAGED, Step.WAIT),
        (NO_LEADER, (), (), DAMAGED, Step.REPORT),
        (TWO, (TWO,), (ME,), DAMAGED, Step.REFETCH),
        (TWO, (TWO,), (ME,), replace(DAMAGED, is_truncated=True), Step.ACCEPT),
        (NO_LEADER, (), (ME,), DAMAGED, Step.WAIT),
        (TWO, (TWO, ME), (ME,), DAMAGED, Step.WAIT),
        (TWO, (TWO,), (ME,), INTACT, Step.WAIT),
        (TWO, (TWO,), (ME,), replace(INTACT, lag=1), Step.WAIT),
        (TWO, (TWO,), (ME,), replace(INTACT, lag=0), Step.RETURN),
        (TWO, (TWO,), (ME,), replace(INTACT, lag=0, is_disk_full=True), Step.WAIT),
    ],
)
def test_next_step(
    leader: NodeId,
    isr: tuple[NodeId, ...],
    lost: tuple[NodeId, ...],
    condition: ReplicaCondition,
    step: Step,
) -> None:
    image, state = state_of(leader, isr, lost=lost)
    assert next_step(image, state, ME, condition) is step


def test_only_replica_keeps_its_intact_records() -> None:
    image = image_of(1, leader=ME, isr=(ME,), replicas=(ME,))
    state = image.topics_by_name[TopicName("topic")].partitions[0]
    assert next_step(image, state, ME, DAMAGED) is Step.WAIT


class FakeFetchers:
    """Truncates at once; tests set the lag."""

    def __init__(self) -> None:
        self.lags: dict[Partition, int] = {}
        self.refetched: list[Partition] = []

    def refetch(self, partition: Partition) -> bool:
        assert ME not in partition.isr, "it was truncated while in sync"
        assert not partition.is_leader
        self.refetched.append(partition)
        log = partition.log
        assert log.damaged_at is not None
        log.truncate_to(log.damaged_at)
        return True

    def lag(self, partition: Partition) -> int | None:
        return self.lags.get(partition)


class Scenario:
    """Node 1, its controller and a clock."""

    def __init__(
        self,
        *,
        leader: NodeId = ME,
        isr: tuple[NodeId, ...] = (ME, TWO, THREE),
        partitions: int = 1,
    ) -> None:
        self.node = Node(partitions, leader=leader, isr=isr, min_insync_replicas=2)
        self.now = 0.0
        self.fetchers = FakeFetchers()
        self.requests: list[AssignReplicasToDirsRequest] = []
        self.is_reachable = True
        self.publishes = True
        self.is_full = False
        self.cleared: list[Log] = []
        self.metrics = self.node.metrics
        self.repairs = Repairer(
            self.node.repairs,
            self.node.replicas,
            ME,
            image=lambda: self.node.image,
            fetchers=self.fetchers,
            send=self._send,
            broker_epoch=lambda: self.node.image.brokers[ME].epoch,
            disk=ReplicaDisk(
                directory_id=HOME,
                is_full=lambda: self.is_full,
                hand_over_seconds=FULL_SECONDS,
                forget_loss=self._forget,
            ),
            clock=self,
            metrics=self.metrics,
        )

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 0

    async def _forget(self, log: Log) -> None:
        self.cleared.append(log)

    async def _send(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        self.requests.append(request)
        if not self.is_reachable:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        outcome = assign_replicas_to_dirs(make_configs(), self.node.image, request)
        if outcome.records and self.publishes:
            self.node.publish(replayed(self.node.image, outcome.records))
            self.repairs.touched(self.node.replicas)
        return outcome.response

    @property
    def partition(self) -> Partition:
        return self.node.partition()

    @property
    def state(self) -> PartitionImage:
        return self.node.image.topics_by_name[TopicName("topic")].partitions[0]

    def damage(self, offset: int) -> None:
        self.partition.log.report_damage("bit flip", offset)

    def counted(self, name: str) -> float:
        family = self.metrics.families[name]
        counters = sum(counter.value for counter in family.counters.values())
        return counters + sum(value for read in family.readers for _, value in read())


def run_scenario(scenario: Scenario, act: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await act()

    scenario.node.run(run())


@pytest.mark.parametrize("leader", [ME, TWO])
def test_damaged_replica_leaves_service_is_truncated_and_returns(leader: NodeId) -> None:
    scenario = Scenario(leader=leader)

    async def act() -> None:
        log = scenario.partition.log
        if leader == ME:
            for value in range(5):
                scenario.node.append(b"%d" % value)
        else:
            lead = Scenario()
            for value in range(5):
                lead.node.append(b"%d" % value)
            found = lead.partition.log.read(0, max_bytes=1 << 20, end=5)
            log.append_as_follower(found.data, epoch_max=2**31 - 1)  # type: ignore[union-attr]
        scenario.damage(2)
        await scenario.repairs.step()
        assert ME not in scenario.state.isr
        assert scenario.state.leader != ME
        assert scenario.counted("riverrun_offline_replicas") == 1
        await scenario.repairs.step()
        assert scenario.fetchers.refetched == [scenario.partition]
        assert log.end_offset == 2
        await scenario.repairs.step()
        assert scenario.state.directories[0] == DIRECTORY_LOST, "it has not caught up yet"
        scenario.fetchers.lags[scenario.partition] = 0
        await scenario.repairs.step()
        assert scenario.state.directories[0] == HOME
        await scenario.repairs.step()
        assert scenario.repairs.damaged() == []
        assert scenario.counted("riverrun_corrupt_replicas_found_total") == 1
        assert scenario.counted("riverrun_corrupt_replicas_repaired_total") == 1
        assert scenario.counted("riverrun_offline_replicas") == 0

    run_scenario(scenario, act)


def test_damaged_leader_stays_until_another_replica_can_lead() -> None:
    scenario = Scenario(isr=(ME,))

    async def act() -> None:
        scenario.node.append(b"value")
        scenario.damage(0)
        await scenario.repairs.step()
        assert scenario.requests == []
        assert scenario.partition.is_leader
        assert scenario.repairs.damaged() == [scenario.partition]
        scenario.node.publish(image_of(1, leader=ME, isr=(ME, TWO), partition_epoch=9))
        await scenario.repairs.step()
        assert scenario.state.leader == TWO

    run_scenario(scenario, act)


def test_report_is_repeated_after_a_delay_without_a_response() -> None:
    scenario = Scenario()

    async def act() -> None:
        scenario.node.append(b"value")
        scenario.is_reachable = False
        scenario.damage(0)
        for _ in range(5):
            await scenario.repairs.step()
        assert len(scenario.requests) == 1
        scenario.now += AGAIN_SECONDS
        scenario.is_reachable = True
        await scenario.repairs.step()
        assert scenario.state.leader != ME

    run_scenario(scenario, act)


def test_loss_found_by_recovery_is_reported_first() -> None:
    """The loss is kept on disk until the controller has it."""
    scenario = Scenario(leader=TWO)

    async def act() -> None:
        scenario.partition.log.damage = "truncated below its recovery point"
        scenario.repairs.touched([scenario.partition])
        scenario.is_reachable = False
        reporting = asyncio.ensure_future(scenario.repairs.report_losses())
        await asyncio.sleep(2.5)
        assert not scenario.cleared
        scenario.is_reachable = True
        await reporting
        assert scenario.cleared == [scenario.partition.log]
        assert scenario.state.directories[0] == DIRECTORY_LOST
        assert ME not in scenario.state.isr
        await scenario.repairs.step()
        assert scenario.fetchers.refetched == [], "nothing is left to truncate"
        scenario.fetchers.lags[scenario.partition] = 0
        await scenario.repairs.step()
        assert scenario.state.directories[0] == HOME

    run_scenario(scenario, act)


def test_repair_continues_after_a_restart() -> None:
    scenario = Scenario(leader=TWO, isr=(TWO, THREE))

    async def act() -> None:
        topic = scenario.node.image.topics_by_name[TopicName("topic")]
        lost = replace(
            topic.partitions[0], directories=(DIRECTORY_LOST, HOME, HOME), partition_epoch=9
        )
        topic = replace(topic, partitions=(lost,))
        image = replace(
            scenario.node.image, topics_by_name={topic.name: topic}, topics_by_id={topic.id: topic}
        )
        scenario.node.publish(image)
        scenario.repairs.touched([scenario.partition])
        scenario.fetchers.lags[scenario.partition] = 0
        await scenario.repairs.step()
        assert scenario.state.directories[0] == HOME

    run_scenario(scenario, act)


# Full disk


def test_leader_with_a_full_disk_hands_over_and_returns() -> None:
    scenario = Scenario()

    async def act() -> None:
        scenario.is_full = True
        await scenario.repairs.step()
        scenario.now += FULL_SECONDS / 2
        await scenario.repairs.step()
        assert scenario.partition.is_leader
        scenario.now += FULL_SECONDS
        await scenario.repairs.step()
        assert scenario.state.leader != ME
        scenario.fetchers.lags[scenario.partition] = 0
        await scenario.repairs.step()
        assert scenario.state.directories[0] == DIRECTORY_LOST, "the disk is still full"
        scenario.is_full = False
        await scenario.repairs.step()
        assert scenario.state.directories[0] == HOME
        assert scenario.fetchers.refetched == [], "its records are intact"
        assert scenario.counted("riverrun_full_disk_hand_overs_total") == 1
        assert scenario.counted("riverrun_corrupt_replicas_found_total") == 0

    run_scenario(scenario, act)


def test_leader_with_a_full_disk_stays_without_enough_other_replicas() -> None:
    scenario = Scenario(isr=(ME, TWO))

    async def act() -> None:
        scenario.is_full = True
        await scenario.repairs.step()
        scenario.now += 2 * FULL_SECONDS
        await scenario.repairs.step()
        assert scenario.partition.is_leader
        assert scenario.requests == []

    run_scenario(scenario, act)


def test_hand_over_is_not_repeated_while_its_image_is_pending() -> None:
    scenario = Scenario()

    async def act() -> None:
        scenario.is_full = True
        scenario.publishes = False
        await scenario.repairs.step()
        for _ in range(10):
            scenario.now += FULL_SECONDS / 5
            await scenario.repairs.step()
        assert 1 <= len(scenario.requests) <= 2

    run_scenario(scenario, act)


def test_leader_epoch_grows_when_a_damaged_leader_is_replaced() -> None:
    scenario = Scenario()

    async def act() -> None:
        scenario.node.append(b"value")
        before = scenario.state.leader_epoch
        scenario.damage(0)
        await scenario.repairs.step()
        assert scenario.state.leader_epoch == LeaderEpoch(before + 1)

    run_scenario(scenario, act)


# Detection of damage


def test_leader_suspects_its_log_when_a_follower_never_acknowledges_records() -> None:
    leader = Leader()
    leader.append(b"value")
    for _ in range(4):
        leader.fetch(TWO, 0)
        assert not leader.partition.log.is_suspect
    leader.fetch(TWO, 0)
    assert leader.partition.log.is_suspect
    leader.partition.log.is_suspect = False
    for _ in range(10):
        leader.fetch(TWO, 0)
    assert not leader.partition.log.is_suspect, "it was checked and is intact"


def test_lost_replica_does_not_join_the_isr() -> None:
    leader = Leader(isr=(ME, THREE))
    leader.append(b"value")
    leader.fetch(THREE, 1)
    lost = replace(leader.state, directories=(HOME, DIRECTORY_LOST, HOME), partition_epoch=1)
    leader.partition.apply(lost)
    leader.fetch(TWO, 1)
    assert leader.partition.proposal is None
    leader.partition.apply(replace(lost, directories=(HOME, HOME, HOME), partition_epoch=2))
    leader.fetch(TWO, 1)
    assert leader.proposal().isr == (ME, TWO, THREE)


@pytest.mark.parametrize(
    ("isr", "code"),
    [
        ((ME, TWO), ErrorCode.KAFKA_STORAGE_ERROR),
        ((ME,), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_consumers_get_a_retriable_error_while_other_replicas_are_in_sync(
    isr: tuple[NodeId, ...], code: ErrorCode
) -> None:
    leader = Leader(isr=isr)
    assert code_for_consumer(leader.partition, ErrorCode.CORRUPT_MESSAGE) is code
    missing = ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_for_consumer(leader.partition, missing) is missing
