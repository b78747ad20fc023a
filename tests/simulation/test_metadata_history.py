"""The metadata history detects nodes whose metadata diverges."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.model.ids import LeaderEpoch, NodeId, Offset, TopicId, TopicName
from riverrun.simulation.checks.metadata_history import MetadataHistory
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.world import Environment, World

MakeWorld = Callable[..., World]
TOPIC = TopicId(UUID(int=7))


@dataclass
class FakeLog:
    """The observed part of a metadata log."""

    node_id: int
    epoch: int = 1
    leader: int | None = None
    high_watermark: int = 0
    end_offset: int = 0
    current: Image = field(default_factory=Image)
    subscriber: Callable[[object, Image], None] = lambda delta, image: None

    def subscribe(self, subscriber: Callable[[object, Image], None]) -> None:
        self.subscriber = subscriber


class Scene:
    """Idle nodes with metadata logs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.metadata = MetadataHistory(world)
        self.logs = {number: FakeLog(number) for number in (1, 2, 3)}
        for number, log in self.logs.items():
            process = world.start(f"node-{number}", _idle)
            self.metadata.began(process, partial(cast, MetadataLog, log))
        self.look()

    def restart(self, number: int) -> None:
        process = self.world.hosts[f"node-{number}"].process
        assert process is not None
        log = self.logs[number] = FakeLog(number)
        self.metadata.began(process, partial(cast, MetadataLog, log))

    def look(self) -> None:
        for number in self.logs:
            process = self.world.hosts[f"node-{number}"].process
            assert process is not None
            self.metadata.check(process)
        if self.world.failure is not None:
            raise self.world.failure

    def publish(self, number: int, image: Image) -> None:
        self.logs[number].current = image
        self.logs[number].subscriber(None, image)
        self.look()


async def _idle(environment: Environment) -> None:
    return


@pytest.fixture
def scene(make_world: MakeWorld) -> Scene:
    return Scene(make_world())


def image(offset: int, **fields: Any) -> Image:
    return replace(Image(), offset=Offset(offset), **fields)


def with_partition(offset: int, **fields: Any) -> Image:
    partition = PartitionImage(
        replicas=(NodeId(1), NodeId(2), NodeId(3)),
        isr=(NodeId(1), NodeId(2)),
        leader=NodeId(1),
        leader_epoch=LeaderEpoch(3),
        partition_epoch=5,
        directories=(),
    )
    partition = replace(partition, **fields)
    topic = TopicImage(name=TopicName("t"), id=TOPIC, partitions=(partition,))
    return image(offset, topics_by_id={TOPIC: topic}, topics_by_name={topic.name: topic})


def test_one_history_passes(scene: Scene) -> None:
    scene.logs[1].leader = scene.logs[2].leader = 1
    scene.look()
    for number in (1, 2, 3):
        scene.publish(number, with_partition(4))
    scene.logs[2].epoch, scene.logs[2].leader, scene.logs[2].end_offset = 2, 2, 5
    scene.look()
    assert scene.metadata.elections == 2
    assert scene.metadata.latest.offset == 4


def test_two_leaders_in_an_epoch_fail(scene: Scene) -> None:
    scene.logs[1].leader = 1
    scene.look()
    scene.logs[3].leader = 3
    with pytest.raises(SafetyViolation, match="follows 3 in epoch 1, which 1 leads"):
        scene.look()


def test_epoch_that_goes_back_fails(scene: Scene) -> None:
    scene.logs[1].epoch = 5
    scene.look()
    scene.logs[1].epoch = 4
    with pytest.raises(SafetyViolation, match="went back from epoch 5 to 4"):
        scene.look()


def test_wiped_node_may_start_at_an_older_epoch(scene: Scene) -> None:
    scene.publish(1, image(3, epoch=LeaderEpoch(5)))
    scene.restart(1)
    with pytest.raises(SafetyViolation, match="went back from epoch 5 to 1"):
        scene.look()
    scene.world.failure = None
    scene.metadata.reset_node("node-1")
    scene.restart(1)
    scene.look()


def test_epoch_that_was_never_durable_may_be_lost(scene: Scene) -> None:
    scene.logs[1].epoch = 5
    scene.look()
    scene.restart(1)
    scene.look()


def test_different_images_at_the_same_offset_fail(scene: Scene) -> None:
    scene.publish(1, image(9, features={"metadata.version": 30}))
    with pytest.raises(SafetyViolation, match="different images at offset 9: features"):
        scene.publish(2, image(9, features={"metadata.version": 29}))


def test_leader_without_committed_records_fails(scene: Scene) -> None:
    scene.publish(1, image(9))
    scene.logs[2].leader, scene.logs[2].epoch, scene.logs[2].end_offset = 2, 2, 9
    with pytest.raises(SafetyViolation, match="offset 9 was committed before"):
        scene.look()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"leader": NodeId(3)}, "not in the ISR"),
        ({"isr": (NodeId(1), NodeId(4))}, "of replicas"),
        ({"elr": (NodeId(2),)}, "in common"),
        ({"leader_epoch": LeaderEpoch(2)}, "leader epoch 2 after 3"),
        ({"partition_epoch": 4}, "partition epoch 4"),
        ({"leader": NodeId(2)}, "1 and 2 lead epoch 3"),
        ({"leader": NO_LEADER}, "1 and -1 lead epoch 3"),
    ],
)
def test_invalid_partition_change_fails(
    scene: Scene, fields: dict[str, object], words: str
) -> None:
    scene.publish(1, with_partition(9))
    with pytest.raises(SafetyViolation, match=words):
        scene.publish(1, with_partition(10, **fields))
