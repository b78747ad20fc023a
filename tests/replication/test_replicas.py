"""Replicas follow the metadata, with many partitions and on a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import DIRECTORY_UNASSIGNED, Image, PartitionImage, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import (
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from riverrun.replication.flusher import Flusher
from riverrun.replication.replicas import Replicas
from riverrun.storage.log import Log
from riverrun.storage.log_creator import BATCH_LOGS, create_logs
from riverrun.storage.settings import LogSettings
from riverrun.storage.space_monitor import DiskSpace
from tests.storage.machines import DATA, NOW_MS, FixedClock, Machine, batch

ME = NodeId(1)
FIRST, SECOND = TopicId(UUID(int=1)), TopicId(UUID(int=2))


def topic_of(partitions: int, topic_id: TopicId = FIRST) -> TopicImage:
    one = PartitionImage(
        replicas=(ME,),
        isr=(ME,),
        leader=ME,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
        directories=(DIRECTORY_UNASSIGNED,),
    )
    return TopicImage(name=TopicName("topic"), id=topic_id, partitions=(one,) * partitions)


def image_of(topic: TopicImage) -> Image:
    return replace(Image(), topics_by_name={topic.name: topic}, topics_by_id={topic.id: topic})


def replicas_on(machine: Machine, grace_ms: int = 0) -> Replicas:
    settings = LogSettings()
    return Replicas(
        machine.start(), ME, lambda *_: settings, lambda _: None, grace_ms=lambda: grace_ms
    )


def prepare(replicas: Replicas, topic: TopicImage) -> None:
    """Create the logs that a topic needs, as before its image is published."""

    async def in_place(work: Callable[[], list[bool]]) -> list[bool]:
        return work()

    wanted = list(replicas.new_logs(image_of(topic), topic))
    asyncio.run(create_logs(replicas._directory, wanted, in_place, FixedClock()))


def test_logs_are_created_before_the_topic_is_visible() -> None:
    replicas = replicas_on(Machine())
    topic = topic_of(2 * BATCH_LOGS + 1)
    prepare(replicas, topic)
    assert replicas.find("topic", 0) is None
    created = dict(replicas._directory.logs)
    assert len(created) == 2 * BATCH_LOGS + 1
    replicas.apply_topic(image_of(topic), topic)
    assert {partition.log for partition in replicas} == set(created.values())
    assert not list(replicas.new_logs(image_of(topic), topic)), "no log is created twice"


def test_log_whose_files_are_being_made_is_opened_later() -> None:
    """A thread makes them while the logs that once found no space are created."""
    replicas = replicas_on(Machine())
    topic = topic_of(2)
    replicas._directory.being_made = {TopicPartition(topic.name, PartitionIndex(1)): None}
    replicas.apply_topic(image_of(topic), topic)
    assert [partition.name.partition for partition in replicas] == [0]
    replicas._directory.being_made = {}
    replicas.open_missing(image_of(topic))
    assert [partition.name.partition for partition in replicas] == [0, 1]


def test_only_changed_partitions_of_a_topic_are_touched() -> None:
    replicas = replicas_on(Machine())
    topic = topic_of(3)
    replicas.apply_topic(image_of(topic), topic)
    changed = replace(topic.partitions[1], partition_epoch=1)
    after = replace(topic, partitions=(topic.partitions[0], changed, topic.partitions[2]))
    touched = replicas.apply_topic(image_of(after), after)
    assert [partition.name.partition for partition in touched] == [1]


def test_recreated_topic_gets_new_logs() -> None:
    replicas = replicas_on(Machine())
    old, new = topic_of(2), topic_of(2, SECOND)
    replicas.apply_topic(image_of(old), old)
    assert not list(replicas.new_logs(image_of(new), new)), "the name is taken until it is applied"
    replicas.apply_topic(image_of(new), new)
    assert [partition.log.topic_id for partition in replicas] == [SECOND, SECOND]


def test_logs_are_created_once_the_full_disk_has_space() -> None:
    machine = Machine()
    replicas = replicas_on(machine)
    topic = topic_of(3)
    machine.disk.capacity_bytes = machine.disk.used_bytes
    prepare(replicas, topic)
    replicas.apply_topic(image_of(topic), topic)
    assert replicas.unopened == {"topic": None}
    replicas.open_missing(image_of(topic))
    assert replicas.unopened == {"topic": None}, "the disk is still full"
    machine.disk.capacity_bytes += 1_000_000
    replicas.open_missing(image_of(topic))
    assert not replicas.unopened
    assert [partition.is_leader for partition in replicas] == [True] * 3


@pytest.mark.parametrize("is_prepared", [False, True])
def test_replica_that_found_no_space_and_moved_away_leaves_no_files(is_prepared: bool) -> None:
    machine = Machine()
    replicas = replicas_on(machine)
    elsewhere = moved(topic_of(1), 2, 3)
    here = moved(topic_of(1), 2, 3, 1, epoch=1)
    replicas.apply_topic(image_of(elsewhere), elsewhere)
    machine.disk.capacity_bytes = machine.disk.used_bytes + 1  # for directories, not for files
    if is_prepared:
        prepare(replicas, here)
    replicas.apply_topic(image_of(here), here)
    assert replicas.unopened == {"topic": None}
    rolled_back = moved(topic_of(1), 2, 3, epoch=2)
    replicas.apply_topic(image_of(rolled_back), rolled_back)
    machine.disk.capacity_bytes += 1_000_000
    replicas.open_missing(image_of(rolled_back))
    assert machine.files.list_directory(DATA) == [".lock", "meta.properties"]


def test_logs_made_before_the_disk_was_full_are_used() -> None:
    machine = Machine()
    replicas = replicas_on(machine)
    topic = topic_of(3)
    before = machine.disk.used_bytes
    prepare(replicas, topic_of(1))
    machine.disk.capacity_bytes = 2 * machine.disk.used_bytes - before + 1
    prepare(replicas, topic)
    assert [str(name) for name in replicas._directory.logs] == ["topic-0", "topic-1"]
    folders = [name for name in machine.files.list_directory(DATA) if name.startswith("topic")]
    assert folders == ["topic-0", "topic-1"]


def test_flush_of_a_deleted_partition_is_not_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    replicas = replicas_on(Machine())
    topic = topic_of(1)
    replicas.apply_topic(image_of(topic), topic)
    partition = replicas.get("topic", 0)

    class FailingFlush:
        async def flushed(self, log: Log, offset: Offset) -> None:
            replicas.remove_topic("topic")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The data directory is offline")

    async def scenario() -> None:
        flusher = Flusher(FailingFlush())
        partition.append(batch(), acks=0, now_ms=NOW_MS)
        flusher.request(partition)
        await asyncio.gather(*flusher._running.values())

    asyncio.run(scenario())
    assert "flush failed" not in capsys.readouterr().out


def moved(topic: TopicImage, *replicas: int, epoch: int = 1) -> TopicImage:
    """The topic with its first partition on other nodes, led by the first of them."""
    nodes = tuple(NodeId(node) for node in replicas)
    partition = replace(
        topic.partitions[0],
        replicas=nodes,
        isr=nodes[:1],
        leader=nodes[0],
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=epoch,
        directories=(DIRECTORY_UNASSIGNED,) * len(nodes),
    )
    return replace(topic, partitions=(partition, *topic.partitions[1:]))


def test_replica_that_left_the_partition_is_deleted_and_its_waiters_find_the_leader() -> None:
    replicas = replicas_on(Machine())
    topic = topic_of(2)
    replicas.apply_topic(image_of(topic), topic)
    partition = replicas.get("topic", 0)
    codes: list[ErrorCode] = []
    partition.when_committed(Offset(1), codes.append)
    replicas.apply_topic(image_of(topic), moved(topic, 2, 3))
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert [one.name.partition for one in replicas] == [1]
    assert len(replicas._directory.removals) == 1


def test_replica_that_comes_back_starts_with_an_empty_log() -> None:
    replicas = replicas_on(Machine())
    topic = topic_of(1)
    replicas.apply_topic(image_of(topic), topic)
    replicas.get("topic", 0).append(batch(b"old"), acks=1, now_ms=NOW_MS)
    replicas.apply_topic(image_of(topic), moved(topic, 2, 3))
    again = moved(topic, 2, 1, epoch=2)
    replicas.apply_topic(image_of(again), again)
    assert replicas.get("topic", 0).log.end_offset == 0


def test_replica_that_was_moved_while_the_node_was_away_is_deleted_at_the_start() -> None:
    machine = Machine()
    replicas = replicas_on(machine)
    topic = topic_of(2)
    replicas.apply_topic(image_of(topic), topic)
    machine.kill()
    away = moved(topic, 2, 3)
    replicas = replicas_on(machine)
    assert len(list(replicas._directory.load(lambda _: LogSettings()))) == 2
    replicas.apply_all(image_of(away))
    assert [str(one) for one in replicas._directory.logs] == ["topic-1"]
    assert len(replicas._directory.removals) == 1


# Logs that are kept for a move back

GRACE_MS = 30_000
SPACIOUS, NEARLY_FULL = DiskSpace(100, 50), DiskSpace(100, 5)


def moved_away(machine: Machine, topic: TopicImage | None = None) -> tuple[Replicas, TopicImage]:
    """A replica with one record was moved to other nodes, and its log is kept."""
    replicas = replicas_on(machine, GRACE_MS)
    topic = topic or topic_of(1)
    replicas.apply_topic(image_of(topic), topic)
    replicas.get("topic", 0).append(batch(b"old"), acks=1, now_ms=NOW_MS)
    away = moved(topic, 2, 3)
    replicas.apply_topic(image_of(away), away)
    return replicas, topic


def is_kept(replicas: Replicas) -> bool:
    assert not replicas._directory.logs, "a kept log is not served"
    return len(replicas._directory.kept) == 1 and not replicas._directory.removals


def test_log_of_a_moved_replica_is_used_again_within_the_grace_time() -> None:
    replicas, topic = moved_away(Machine())
    assert is_kept(replicas)
    assert replicas.find("topic", 0) is None
    again = moved(topic, 2, 1, epoch=2)
    prepare(replicas, again)
    replicas.apply_topic(image_of(again), again)
    log = replicas.get("topic", 0).log
    assert log.end_offset == 1
    appended = log.append_as_leader(batch(b"new"), leader_epoch=LeaderEpoch(2), now_ms=NOW_MS)
    assert appended.base_offset == 1
    assert not replicas._directory.kept


def test_kept_log_is_deleted_after_the_grace_time() -> None:
    machine = Machine()
    replicas, _ = moved_away(machine)
    machine.clock.ms += GRACE_MS - 1
    replicas._directory.kept.expire(SPACIOUS, is_disk_full=False)
    assert is_kept(replicas)
    machine.clock.ms += 1
    replicas._directory.kept.expire(SPACIOUS, is_disk_full=False)
    assert len(replicas._directory.removals) == 1


@pytest.mark.parametrize(("space", "is_full"), [(NEARLY_FULL, False), (SPACIOUS, True)])
def test_kept_log_is_deleted_at_once_when_the_disk_is_short(
    space: DiskSpace, is_full: bool
) -> None:
    replicas, _ = moved_away(Machine())
    replicas._directory.kept.expire(space, is_disk_full=is_full)
    assert len(replicas._directory.removals) == 1


def test_kept_log_is_deleted_with_its_topic() -> None:
    replicas, _ = moved_away(Machine())
    replicas.remove_topic("topic")
    assert len(replicas._directory.removals) == 1


@pytest.mark.parametrize("is_prepared", [False, True])
def test_kept_log_is_not_used_by_another_topic_of_the_same_name(is_prepared: bool) -> None:
    replicas, _ = moved_away(Machine())
    other = topic_of(1, SECOND)
    if is_prepared:
        prepare(replicas, other)
    replicas.apply_topic(image_of(other), other)
    log = replicas.get("topic", 0).log
    assert (log.end_offset, log.topic_id) == (0, SECOND)
    assert len(replicas._directory.removals) == 1


def test_copy_of_a_cancelled_move_is_not_kept() -> None:
    replicas = replicas_on(Machine(), GRACE_MS)
    topic = topic_of(1)
    copying = replace(topic, partitions=(replace(at(2, 1), adding=(ME,), partition_epoch=1),))
    replicas.apply_topic(image_of(copying), copying)
    away = moved(topic, 2, 3, epoch=2)
    replicas.apply_topic(image_of(away), away)
    assert len(replicas._directory.removals) == 1


@pytest.mark.parametrize("is_over", [False, True])
def test_kept_log_survives_a_restart_until_its_time_is_over(is_over: bool) -> None:
    machine = Machine()
    replicas, topic = moved_away(machine)
    machine.kill()
    machine.clock.ms += GRACE_MS if is_over else GRACE_MS - 1
    replicas = replicas_on(machine, GRACE_MS)
    assert len(list(replicas._directory.load(lambda _: LogSettings()))) == 1
    replicas.apply_all(image_of(moved(topic, 2, 3)))
    if is_over:
        assert len(replicas._directory.removals) == 1
        return
    assert is_kept(replicas)
    again = moved(topic, 2, 1, epoch=2)
    replicas.apply_topic(image_of(again), again)
    assert replicas.get("topic", 0).log.end_offset == 1


def test_log_that_is_assigned_again_at_a_restart_is_served_although_its_time_was_over() -> None:
    machine = Machine()
    _, topic = moved_away(machine)
    machine.kill()
    machine.clock.ms += 2 * GRACE_MS
    replicas = replicas_on(machine, GRACE_MS)
    list(replicas._directory.load(lambda _: LogSettings()))
    replicas.apply_all(image_of(moved(topic, 2, 1, epoch=2)))
    assert replicas.get("topic", 0).log.end_offset == 1
    assert not replicas._directory.removals


def on_full_disk(*partitions: PartitionImage) -> tuple[Replicas, Machine, TopicImage]:
    """A topic with these partitions on a disk that has just become full."""
    machine = Machine()
    replicas = replicas_on(machine)
    topic = replace(topic_of(0), partitions=partitions)
    replicas.apply_topic(image_of(topic), topic)
    machine.disk.capacity_bytes = machine.disk.used_bytes
    return replicas, machine, topic


def at(*nodes: int, epoch: int = 0) -> PartitionImage:
    """A partition on these nodes, led by the first."""
    return moved(topic_of(1), *nodes, epoch=epoch).partitions[0]


def test_log_that_cannot_be_created_does_not_delay_roles_and_removals() -> None:
    replicas, machine, topic = on_full_disk(at(2), at(1, 2), at(1))
    led, left = replicas.get("topic", 1), replicas.get("topic", 2)
    swapped = replace(topic, partitions=(at(2, 1, epoch=1), at(2, 1, epoch=1), at(2, epoch=1)))
    touched = replicas.apply_topic(image_of(swapped), swapped)
    assert (led.is_leader, led.leader_epoch, left.is_closed) == (False, 1, True)
    assert touched == [led, left]
    assert replicas.unopened == {"topic": None}
    machine.disk.capacity_bytes += 1_000_000
    replicas.open_missing(image_of(swapped))
    assert sorted(one.name.partition for one in replicas) == [0, 1]


def test_logs_found_at_the_start_are_opened_although_another_cannot_be_created() -> None:
    _, machine, topic = on_full_disk(at(2), at(1))
    machine.kill()
    replicas = replicas_on(machine)
    list(replicas._directory.load(lambda _: LogSettings()))
    machine.disk.capacity_bytes = machine.disk.used_bytes
    added = replace(topic, partitions=(at(2, 1, epoch=1), at(1)))
    replicas.apply_all(image_of(added))
    assert [one.name.partition for one in replicas if one.is_leader] == [1]
