"""A leader that is not RECOVERING has all committed records, whatever happens to brokers.

The model has three replicas of one partition with real logs. Brokers stop, are killed, lose power
(and the end of their logs), register again, fetch, join and leave the in-sync set. The controller's
own records elect the leaders. Planted bugs show that the model detects losses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from riverrun.cluster.brokers import registration
from riverrun.cluster.brokers.heartbeats import heartbeat
from riverrun.cluster.brokers.registration import RegistrationContext
from riverrun.cluster.partitions import leadership
from riverrun.cluster.partitions.alter_partition import alter_partition
from riverrun.metadata.image import Image, PartitionImage
from riverrun.metadata.records import PartitionChangeRecord, Record, RegisterBrokerRecord
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.wire.messages.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.messages import heartbeat_request, registration_request
from tests.cluster.states import TOPIC, P, cluster, setting, topic

CONFIGS = make_configs()
MINIMUM = 2
STEPS = 200
SEEDS = 100
Entry = tuple[int, int]


@dataclass(slots=True)
class Node:
    """A broker; ``acked`` is the (leader epoch, end offset) that it has acknowledged."""

    id: int
    log: list[Entry] = field(default_factory=list)
    is_up: bool = True
    incarnation: int = 1
    has_all: bool = True
    acked: tuple[int, int] = (-1, 0)


class Loss(AssertionError):
    """A leader without a committed record."""


class World:
    def __init__(self, seed: int, spoil: Callable[[list[Record]], list[Record]]) -> None:
        self.random = random.Random(seed)
        self.image: Image = cluster(P(1, (1, 2, 3)), minimum=MINIMUM)
        self.nodes = {number: Node(number) for number in (1, 2, 3)}
        self.committed: list[Entry] = []
        self.epoch_start = 0
        self.next = 0
        self.spoil = spoil
        self.story: list[str] = []
        self.clean_elections = 0

    @property
    def partition(self) -> PartitionImage:
        return topic(self.image).partitions[0]

    def leader(self) -> Node | None:
        """The leader, if its process runs."""
        node = self.nodes.get(self.partition.leader)
        return node if node is not None and node.is_up else None

    def apply(self, records: tuple[Record, ...] | list[Record]) -> None:
        before = self.partition
        if records:
            self.image = replayed(self.image, records)
        after = self.partition
        if after.leader_epoch == before.leader_epoch or after.leader < 0:
            return
        node = self.nodes[after.leader]
        self.epoch_start = len(node.log)
        if not node.is_up:
            return  # it must register before it can serve, and then it no longer leads
        if after.leader_recovery_state:
            kept = [a for a, b in zip(self.committed, node.log, strict=False) if a == b]
            self.committed = kept
        else:
            self.clean_elections += 1
            if node.log[: len(self.committed)] != self.committed:
                raise Loss(f"{node.id} leads without {self.committed[len(node.log) :]}")

    # Events

    def append(self) -> None:
        leader = self.leader()
        if leader is not None:
            self.next += 1
            leader.log.append((self.partition.leader_epoch, self.next))
            self.commit(leader)

    def fetch(self) -> None:
        leader = self.leader()
        node = self.nodes[self.random.choice((1, 2, 3))]
        is_let_in = not self.image.brokers[NodeId(node.id)].is_fenced
        if leader is None or node is leader or not node.is_up or not is_let_in:
            return
        same = 0
        while same < min(len(node.log), len(leader.log)) and node.log[same] == leader.log[same]:
            same += 1
        node.log = leader.log[: same + self.random.choice((0, 1, 5))]
        node.acked = (self.partition.leader_epoch, len(node.log))
        self.commit(leader)

    def commit(self, leader: Node) -> None:
        if len(self.partition.isr) < MINIMUM:
            return
        ends = [len(leader.log)]
        for number in self.partition.isr:
            if number != leader.id:
                epoch, end = self.nodes[number].acked
                ends.append(end if epoch == self.partition.leader_epoch else 0)
        end = min(ends)
        if end > len(self.committed):
            self.committed = leader.log[:end]

    def propose(self) -> None:
        """The leader proposes to remove unreachable replicas or to add one that has caught up."""
        leader = self.leader()
        if leader is None or self.image.brokers[NodeId(leader.id)].is_fenced:
            return
        partition, wanted = self.partition, [leader.id]
        for node in self.nodes.values():
            epoch, end = node.acked
            is_here = epoch == partition.leader_epoch and node.is_up
            is_caught_up = is_here and end >= max(len(self.committed), self.epoch_start)
            is_in = node.id in partition.isr
            if node is not leader and (is_caught_up or (is_in and self.random.random() < 0.5)):
                wanted.append(node.id)
        request = AlterPartitionRequest(
            broker_id=leader.id,
            broker_epoch=self.image.brokers[NodeId(leader.id)].epoch,
            topics=(
                TopicData(
                    topic_id=TOPIC,
                    partitions=(
                        PartitionData(
                            partition_index=0,
                            leader_epoch=partition.leader_epoch,
                            partition_epoch=partition.partition_epoch,
                            new_isr_with_epochs=tuple(
                                BrokerState(
                                    broker_id=one,
                                    broker_epoch=self.image.brokers[NodeId(one)].epoch,
                                )
                                for one in wanted
                            ),
                        ),
                    ),
                ),
            ),
        )
        decision = alter_partition(CONFIGS, self.image, request)
        code = decision.response.topics[0].partitions[0].error_code
        assert code in (ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA), code
        self.apply(decision.records)
        if code is ErrorCode.NONE:
            self.commit(leader)

    def end(self) -> None:
        """A process stops cleanly, is killed, or loses power and the end of its log."""
        node = self.nodes[self.random.choice((1, 2, 3))]
        if not node.is_up:
            return
        node.is_up, node.acked = False, (-1, 0)
        node.has_all = self.random.random() < 0.5
        if not node.has_all:
            node.log = node.log[: self.random.randint(0, len(node.log))]

    def expire(self) -> None:
        gone = [NodeId(node.id) for node in self.nodes.values() if not node.is_up]
        self.apply(self.spoil(leadership.fence(CONFIGS, self.image, gone)))

    def start(self) -> None:
        node = self.nodes[self.random.choice((1, 2, 3))]
        if node.is_up:
            return
        node.incarnation += 1
        epoch = self.image.brokers[NodeId(node.id)].epoch if node.has_all else -1
        request = registration_request(node.id, node.incarnation, previous=epoch)
        decision = registration.register(CONFIGS, self.image, request, RegistrationContext())
        self.apply(self.spoil(list(decision.records)))
        node.is_up = True
        beat = heartbeat_request(self.image, node.id)
        self.apply(heartbeat(CONFIGS, self.image, beat, may_leave=True).records)

    def play(self) -> None:
        acts = (self.append, self.fetch, self.propose, self.end, self.start, self.expire)
        chosen = self.random.choices(acts, weights=(6, 12, 5, 2, 4, 2), k=STEPS)
        for act in chosen:
            self.story.append(act.__name__)
            act()


def soundly(records: list[Record]) -> list[Record]:
    return records


def test_clean_leader_has_all_committed_records() -> None:
    elections = 0
    for seed in range(SEEDS):
        world = World(seed, soundly)
        try:
            world.play()
        except Loss as loss:
            raise AssertionError(f"seed {seed}: {loss} after {world.story}") from loss
        elections += world.clean_elections
    assert elections > 2 * SEEDS, "too little has happened"


def keep_in_isr(records: list[Record]) -> list[Record]:
    """Planted bug: a new incarnation stays in the in-sync set."""
    if not isinstance(records[-1] if records else None, RegisterBrokerRecord):
        return records
    nothing = setting(
        "no.such.thing", "1"
    )  # keeps the number of records, because the epoch is an offset
    return [nothing if isinstance(one, PartitionChangeRecord) else one for one in records]


def forget_uncleanness(records: list[Record]) -> list[Record]:
    """Planted bug: all restarted brokers stay eligible."""
    return [
        _eligible(r) if isinstance(r, PartitionChangeRecord) and r.isr == () else r for r in records
    ]


def _eligible(record: PartitionChangeRecord) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition_id=record.partition_id,
        topic_id=record.topic_id,
        isr=(),
        leader=record.leader,
        eligible_leader_replicas=(1, 2, 3),
        last_known_elr=record.last_known_elr,
    )


@pytest.mark.parametrize("flaw", [keep_in_isr, forget_uncleanness])
def test_planted_bug_is_found(flaw: Callable[[list[Record]], list[Record]]) -> None:
    with pytest.raises(Loss):
        for seed in range(SEEDS):
            World(seed, flaw).play()
