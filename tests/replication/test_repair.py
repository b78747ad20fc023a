"""A damaged replica goes out of service, is fetched again and comes back, and never leads between.

The controller's judgement is the real one; who fetches is a fake that cuts and catches up at once.
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
from tests.server.requests.led import ME, THREE, TWO, Node, image_of

HOME = UUID(int=500)
SOUND, DAMAGED = ReplicaCondition(is_damaged=False), ReplicaCondition(is_damaged=True)
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
        (ME, (ME, TWO), (), SOUND, Step.NONE),
        (ME, (ME, TWO), (), DAMAGED, Step.REPORT),
        (TWO, (ME, TWO), (), DAMAGED, Step.REPORT),
        (TWO, (TWO,), (), DAMAGED, Step.REPORT),
        (ME, (ME,), (), DAMAGED, Step.WAIT),
        (NO_LEADER, (), (), DAMAGED, Step.REPORT),
        (TWO, (TWO,), (ME,), DAMAGED, Step.REFETCH),
        (TWO, (TWO,), (ME,), replace(DAMAGED, is_truncated=True), Step.ACCEPT),
        (NO_LEADER, (), (ME,), DAMAGED, Step.WAIT),
        (TWO, (TWO, ME), (ME,), DAMAGED, Step.WAIT),
        (TWO, (TWO,), (ME,), SOUND, Step.WAIT),
        (TWO, (TWO,), (ME,), replace(SOUND, lag=1), Step.WAIT),
        (TWO, (TWO,), (ME,), replace(SOUND, lag=0), Step.RETURN),
        (TWO, (TWO,), (ME,), replace(SOUND, lag=0, is_disk_full=True), Step.WAIT),
    ],
)
def test_what_is_next(
    leader: NodeId,
    isr: tuple[NodeId, ...],
    lost: tuple[NodeId, ...],
    condition: ReplicaCondition,
    step: Step,
) -> None:
    image, state = state_of(leader, isr, lost=lost)
    assert next_step(image, state, ME, condition) is step


def test_who_is_alone_goes_on_with_what_is_sound() -> None:
    image = image_of(1, leader=ME, isr=(ME,), replicas=(ME,))
    state = image.topics_by_name[TopicName("topic")].partitions[0]
    assert next_step(image, state, ME, DAMAGED) is Step.WAIT


class FollowerProgress:
    """Fetches by hand."""

    def __init__(self) -> None:
        self.lags: dict[Partition, int] = {}
        self.refetched: list[Partition] = []

    def refetch(self, partition: Partition) -> bool:
        assert ME not in partition.isr, "it was cut while it counted as in sync"
        assert not partition.is_leader
        self.refetched.append(partition)
        log = partition.log
        assert log.damaged_at is not None
        log.truncate_to(log.damaged_at)
        return True

    def lag(self, partition: Partition) -> int | None:
        return self.lags.get(partition)


class Story:
    """Node 1, its controller, and time that passes."""

    def __init__(
        self,
        *,
        leader: NodeId = ME,
        isr: tuple[NodeId, ...] = (ME, TWO, THREE),
        partitions: int = 1,
    ) -> None:
        self.node = Node(partitions, leader=leader, isr=isr, min_insync_replicas=2)
        self.now = 0.0
        self.follower = FollowerProgress()
        self.requests: list[AssignReplicasToDirsRequest] = []
        self.is_reachable = True
        self.publishes = True
        self.is_full = False
        self.forgotten: list[Log] = []
        self.metrics = self.node.metrics
        self.repairs = Repairer(
            self.node.repairs,
            self.node.replicas,
            ME,
            image=lambda: self.node.image,
            fetchers=self.follower,
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
        self.forgotten.append(log)

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
        self.partition.log.report_damage("rot", offset)

    def counted(self, name: str) -> float:
        family = self.metrics.families[name]
        counters = sum(counter.value for counter in family.counters.values())
        return counters + sum(value for read in family.gauges for _, value in read())


def play(story: Story, act: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await act()

    story.node.run(run())


@pytest.mark.parametrize("leader", [ME, TWO])
def test_a_damaged_replica_is_out_then_cut_then_back(leader: NodeId) -> None:
    story = Story(leader=leader)

    async def act() -> None:
        log = story.partition.log
        if leader == ME:
            for value in range(5):
                story.node.append(b"%d" % value)
        else:
            lead = Story()
            for value in range(5):
                lead.node.append(b"%d" % value)
            found = lead.partition.log.read(0, max_bytes=1 << 20, end=5)
            log.append_as_follower(found.data, epoch_max=2**31 - 1)  # type: ignore[union-attr]
        story.damage(2)
        await story.repairs.step()
        assert ME not in story.state.isr
        assert story.state.leader != ME
        assert story.counted("riverrun_offline_replicas") == 1
        await story.repairs.step()
        assert story.follower.refetched == [story.partition]
        assert log.end_offset == 2
        await story.repairs.step()
        assert story.state.directories[0] == DIRECTORY_LOST, "it has not caught up yet"
        story.follower.lags[story.partition] = 0
        await story.repairs.step()
        assert story.state.directories[0] == HOME
        await story.repairs.step()
        assert story.repairs.damaged() == []
        assert story.counted("riverrun_corrupt_replicas_found_total") == 1
        assert story.counted("riverrun_corrupt_replicas_repaired_total") == 1
        assert story.counted("riverrun_offline_replicas") == 0

    play(story, act)


def test_a_damaged_leader_without_another_goes_on_until_there_is_one() -> None:
    story = Story(isr=(ME,))

    async def act() -> None:
        story.node.append(b"value")
        story.damage(0)
        await story.repairs.step()
        assert story.requests == []
        assert story.partition.is_leader
        assert story.repairs.damaged() == [story.partition]
        story.node.publish(image_of(1, leader=ME, isr=(ME, TWO), partition_epoch=9))
        await story.repairs.step()
        assert story.state.leader == TWO

    play(story, act)


def test_a_controller_that_does_not_answer_is_asked_again_but_not_at_once() -> None:
    story = Story()

    async def act() -> None:
        story.node.append(b"value")
        story.is_reachable = False
        story.damage(0)
        for _ in range(5):
            await story.repairs.step()
        assert len(story.requests) == 1
        story.now += AGAIN_SECONDS
        story.is_reachable = True
        await story.repairs.step()
        assert story.state.leader != ME

    play(story, act)


def test_what_was_lost_at_the_start_is_reported_before_anything_else() -> None:
    """And as long as nobody has heard of it, it is not forgotten here."""
    story = Story(leader=TWO)

    async def act() -> None:
        story.partition.log.damage = "cut below its recovery point"
        story.repairs.touched([story.partition])
        story.is_reachable = False
        reporting = asyncio.ensure_future(story.repairs.report_losses())
        await asyncio.sleep(2.5)
        assert not story.forgotten
        story.is_reachable = True
        await reporting
        assert story.forgotten == [story.partition.log]
        assert story.state.directories[0] == DIRECTORY_LOST
        assert ME not in story.state.isr
        await story.repairs.step()
        assert story.follower.refetched == [], "there is nothing to cut any more"
        story.follower.lags[story.partition] = 0
        await story.repairs.step()
        assert story.state.directories[0] == HOME

    play(story, act)


def test_a_replica_that_was_being_fetched_again_before_a_restart_comes_back() -> None:
    story = Story(leader=TWO, isr=(TWO, THREE))

    async def act() -> None:
        topic = story.node.image.topics_by_name[TopicName("topic")]
        lost = replace(
            topic.partitions[0], directories=(DIRECTORY_LOST, HOME, HOME), partition_epoch=9
        )
        topic = replace(topic, partitions=(lost,))
        image = replace(
            story.node.image, topics_by_name={topic.name: topic}, topics_by_id={topic.id: topic}
        )
        story.node.publish(image)
        story.repairs.touched([story.partition])
        story.follower.lags[story.partition] = 0
        await story.repairs.step()
        assert story.state.directories[0] == HOME

    play(story, act)


# A disk without room


def test_a_leader_without_room_hands_over_after_a_while_and_comes_back() -> None:
    story = Story()

    async def act() -> None:
        story.is_full = True
        await story.repairs.step()
        story.now += FULL_SECONDS / 2
        await story.repairs.step()
        assert story.partition.is_leader
        story.now += FULL_SECONDS
        await story.repairs.step()
        assert story.state.leader != ME
        story.follower.lags[story.partition] = 0
        await story.repairs.step()
        assert story.state.directories[0] == DIRECTORY_LOST, "there is no room yet"
        story.is_full = False
        await story.repairs.step()
        assert story.state.directories[0] == HOME
        assert story.follower.refetched == [], "what it holds is sound"
        assert story.counted("riverrun_full_disk_hand_overs_total") == 1
        assert story.counted("riverrun_corrupt_replicas_found_total") == 0

    play(story, act)


def test_a_leader_without_room_stays_where_too_few_others_could_write() -> None:
    story = Story(isr=(ME, TWO))

    async def act() -> None:
        story.is_full = True
        await story.repairs.step()
        story.now += 2 * FULL_SECONDS
        await story.repairs.step()
        assert story.partition.is_leader
        assert story.requests == []

    play(story, act)


def test_a_hand_over_is_not_asked_for_again_while_its_image_is_on_its_way() -> None:
    story = Story()

    async def act() -> None:
        story.is_full = True
        story.publishes = False
        await story.repairs.step()
        for _ in range(10):
            story.now += FULL_SECONDS / 5
            await story.repairs.step()
        assert 1 <= len(story.requests) <= 2

    play(story, act)


def test_an_epoch_goes_on_when_the_leader_is_replaced() -> None:
    story = Story()

    async def act() -> None:
        story.node.append(b"value")
        before = story.state.leader_epoch
        story.damage(0)
        await story.repairs.step()
        assert story.state.leader_epoch == LeaderEpoch(before + 1)

    play(story, act)


# Who meets damage first


def test_a_follower_that_never_takes_what_it_is_sent_makes_the_leader_look() -> None:
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
    assert not leader.partition.log.is_suspect, "it was looked at, and is sound"


def test_a_replica_that_is_lost_does_not_join() -> None:
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
def test_consumers_are_told_to_try_again_where_others_have_what_is_damaged(
    isr: tuple[NodeId, ...], code: ErrorCode
) -> None:
    leader = Leader(isr=isr)
    assert code_for_consumer(leader.partition, ErrorCode.CORRUPT_MESSAGE) is code
    missing = ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_for_consumer(leader.partition, missing) is missing
