"""A leader that is not RECOVERING has all committed records, whatever is moved and whatever fails.

A model of one partition among six brokers. Reassignments start, change and are cancelled while
brokers are fenced, restarted, shut down uncleanly, put into other modes and elected. The model
counts the records that each replica holds. A replica that leaves the partition deletes them.
``test_safe_elections`` has real logs, but no reassignments. Planted bugs show that the model
detects losses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from riverrun.cluster.brokers.modes import BROKER_MODE
from riverrun.cluster.partitions import leadership
from riverrun.cluster.partitions.alter_partition import alter_partition
from riverrun.cluster.partitions.elect_leaders import balance, hand_over
from riverrun.cluster.partitions.reassignment import alter_partition_reassignments
from riverrun.metadata.image import Image, LeaderRecoveryState, PartitionImage
from riverrun.metadata.partitions import partition_of, record_of
from riverrun.metadata.records import ConfigRecord, PartitionChangeRecord, Record
from riverrun.model.ids import NodeId, PartitionIndex
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import NAME, TOPIC, P, cluster, setting, topic

CONFIGS = make_configs()
NODES = tuple(NodeId(node) for node in (1, 2, 3, 4, 5, 6))
STEPS = 60
SEEDS = 1000
MODES = ("active", "active", "maintenance", "decommissioning")

Spoil = Callable[["MovingPartition", PartitionChangeRecord], PartitionChangeRecord]


class LostRecords(AssertionError):
    """A clean leader or in-sync replica without a committed record."""


def soundly(_: MovingPartition, record: PartitionChangeRecord) -> PartitionChangeRecord:
    return record


class MovingPartition:
    """``held`` counts the records of each broker, ``committed`` those that are acknowledged."""

    def __init__(self, seed: int, spoil: Spoil = soundly) -> None:
        self.random = random.Random(seed)
        self.minimum = self.random.randint(1, 3)
        replicas = tuple(self.random.sample(NODES, self.random.randint(1, 3)))
        is_unclean = self.random.random() < 0.15
        self.image: Image = cluster(
            P(replicas[0], replicas, replicas=replicas),
            brokers=NODES,
            minimum=self.minimum,
            settings={"unclean.leader.election.enable": "true"} if is_unclean else None,
        )
        self.held = dict.fromkeys(NODES, 0)
        self.committed = 0
        self.completed = 0
        self.elections = 0
        self.spoil = spoil
        self.story: list[str] = []

    @property
    def partition(self) -> PartitionImage:
        return topic(self.image).partitions[0]

    def apply(self, records: Iterable[Record]) -> None:
        for record in records:
            before = self.partition
            written = (
                self.spoil(self, record) if isinstance(record, PartitionChangeRecord) else record
            )
            self.image = replayed(self.image, [written])
            if self.partition != before:
                self.check(before, self.partition)

    def check(self, before: PartitionImage, now: PartitionImage) -> None:
        self.story.append(f"{now}")
        assert partition_of(record_of(TOPIC, PartitionIndex(0), now)) == now
        assert now.replication_factor >= 1
        for node in before.replicas:
            if node not in now.replicas:
                self.held[node] = 0
                assert now.leader_epoch > before.leader_epoch, "a replica left in the same epoch"
        if before.adding and not now.adding:
            self.completed += 1
        if now.leader < 0:
            return
        if now.leader != before.leader:
            self.elections += 1
            if now.leader_recovery_state is LeaderRecoveryState.RECOVERING:
                self.committed = min(self.committed, self.held[now.leader])
                for node in NODES:
                    self.held[node] = min(self.held[node], self.committed)
        for node in now.isr:
            if self.held[node] < self.committed:
                raise LostRecords(f"{node} has {self.held[node]} of {self.committed} in {now}")

    # Events

    def produce(self) -> None:
        now = self.partition
        if now.leader >= 0 and len(now.isr) >= now.min_in_sync(self.minimum):
            self.committed += 1
            for node in now.isr:
                self.held[node] = self.committed

    def reassign(self, target: tuple[int, ...] | None) -> None:
        one = ReassignablePartition(partition_index=0, replicas=target)
        request = AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(name=NAME, partitions=(one,)),)
        )
        self.apply(alter_partition_reassignments(CONFIGS, self.image, request).records)

    def start(self) -> None:
        self.reassign(tuple(self.random.sample(NODES, self.random.randint(1, 4))))

    def cancel(self) -> None:
        self.reassign(None)

    def join(self) -> None:
        now = self.partition
        able = [n for n in now.replicas if n not in now.isr and self.image.is_active(n)]
        if now.leader >= 0 and able:
            joining = self.random.sample(able, self.random.randint(1, len(able)))
            for node in joining:
                self.held[node] = self.held[now.leader]
            self.propose([n for n in now.replicas if n in now.isr or n in joining])

    def shrink(self) -> None:
        now = self.partition
        if now.leader >= 0:
            self.propose([n for n in now.isr if n == now.leader or self.random.random() < 0.6])

    def propose(self, isr: list[NodeId]) -> None:
        now, brokers = self.partition, self.image.brokers
        partition = PartitionData(
            partition_index=0,
            leader_epoch=now.leader_epoch,
            partition_epoch=now.partition_epoch,
            new_isr_with_epochs=tuple(
                BrokerState(broker_id=node, broker_epoch=brokers[node].epoch) for node in isr
            ),
        )
        request = AlterPartitionRequest(
            broker_id=now.leader,
            broker_epoch=brokers[now.leader].epoch,
            topics=(TopicData(topic_id=TOPIC, partitions=(partition,)),),
        )
        self.apply(alter_partition(CONFIGS, self.image, request).records)

    def fence(self) -> None:
        among = self.random.choice((NODES, self.partition.replicas))
        gone = self.random.sample(among, self.random.randint(1, min(len(among), 3)))
        self.apply(leadership.fence(CONFIGS, self.image, gone))

    def unfence(self) -> None:
        fenced = [node for node in NODES if self.image.brokers[node].is_fenced]
        if fenced:
            node = self.random.choice(fenced)
            self.apply(leadership.unfence(CONFIGS, self.image, node))

    def restart(self) -> None:
        node, is_clean = self.random.choice(NODES), self.random.random() < 0.5
        directories = self.image.brokers[node].directories
        self.apply(leadership.restart(CONFIGS, self.image, node, directories, is_clean=is_clean))
        self.apply(leadership.fence(CONFIGS, self.image, [node]))
        if not is_clean:
            self.held[node] = self.random.randint(0, self.held[node])

    def set_mode(self) -> None:
        node, mode = self.random.choice(NODES), self.random.choice(MODES)
        record = ConfigRecord(
            resource_type=4, resource_name=str(node), name=BROKER_MODE, value=mode
        )
        self.apply([record])

    def set_minimum(self) -> None:
        """Lower the minimum of a partition without a leader."""
        if self.partition.leader < 0 and self.minimum > 1:
            self.minimum -= 1
            self.apply([setting("min.insync.replicas", str(self.minimum))])

    def elect(self) -> None:
        self.apply(hand_over(CONFIGS, self.image).records)
        self.apply(balance(CONFIGS, self.image).records)

    def play(self) -> None:
        weighted = {
            self.produce: 10, self.start: 3, self.cancel: 1, self.join: 3, self.shrink: 1,
            self.fence: 2, self.unfence: 3, self.restart: 1, self.set_mode: 1, self.elect: 1,
            self.set_minimum: 1,
        }  # fmt: skip
        acts = self.random.choices(list(weighted), weights=list(weighted.values()), k=STEPS)
        for act in acts:
            self.story.append(act.__name__)
            act()


@pytest.mark.slow
def test_clean_leader_of_a_moving_partition_has_all_committed_records() -> None:
    completed = elections = 0
    for seed in range(SEEDS):
        world = MovingPartition(seed)
        try:
            world.play()
        except AssertionError as error:
            last = "\n".join(world.story[-12:])
            raise AssertionError(
                f"seed {seed}, minimum {world.minimum}: {error}\n{last}"
            ) from error
        completed += world.completed
        elections += world.elections
    assert completed > SEEDS, "too few reassignments have ended"
    assert elections > SEEDS


def keep_eligible(world: MovingPartition, record: PartitionChangeRecord) -> PartitionChangeRecord:
    """Planted bug: an elected replica leaves the others eligible, although it commits alone."""
    before = world.partition
    if before.isr or record.isr is None or len(record.isr) != 1:
        return record
    others = tuple(node for node in before.elr if node not in record.isr)
    return replace(record, eligible_leader_replicas=others)


def keep_removed_in_isr(_: MovingPartition, record: PartitionChangeRecord) -> PartitionChangeRecord:
    """Planted bug: the end of a reassignment puts all replicas into the in-sync set."""
    return record if record.replicas is None else replace(record, isr=record.replicas)


@pytest.mark.slow
@pytest.mark.parametrize("flaw", [keep_eligible, keep_removed_in_isr])
def test_planted_bug_in_a_moving_partition_is_found(flaw: Spoil) -> None:
    with pytest.raises(LostRecords):
        for seed in range(SEEDS):
            MovingPartition(seed, flaw).play()
