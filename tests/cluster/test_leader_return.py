"""Leadership returns to a broker in steps, at the pace that it can follow."""

from __future__ import annotations

from msgspec import structs

from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.partitions.leader_return import (
    LOOK_SECONDS,
    REPEATED_SECONDS,
    STEP_SECONDS,
    BrokerReturns,
    LeaderReturn,
)
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import P, cluster, topic

CONFIGS = make_configs()
NOW = 100.0
STEP = 8
AWAY = P(2, (1, 2, 3))
"""Node 1 is the preferred leader, but node 2 leads."""


class Returning:
    """A controller that returns leaderships; all brokers have read the image."""

    def __init__(self, *partitions: P) -> None:
        self.settings = ControllerSettings(leaders_returned_max=STEP)
        self.image: Image = cluster(*partitions)
        self.sessions = Sessions(self.settings)
        self.returns = LeaderReturn(self.settings)
        self.now = NOW
        self.departing: tuple[NodeId, ...] = ()
        self.heartbeats()

    def heartbeats(self) -> None:
        for broker in self.image.brokers.values():
            self.sessions.touched(broker.id, broker.epoch, self.image.offset, self.now)

    def step(self) -> tuple[int, bool]:
        """The number of leaderships that returned, and whether more remain."""
        decision = self.returns.step(
            CONFIGS, self.image, self.sessions, self.now, departing=self.departing
        )
        self.image = replayed(self.image, decision.records)
        return len(decision.records), decision.response


def test_leaderships_return_in_steps_of_limited_size() -> None:
    returning = Returning(*[AWAY] * (2 * STEP + 1))
    for expected in ((STEP, True), (STEP, True), (1, False), (0, False)):
        assert returning.step() == expected
        returning.heartbeats()
    assert all(one.leader == 1 for one in topic(returning.image).partitions)


def test_broker_that_has_not_read_its_last_step_gets_no_more() -> None:
    returning = Returning(*[AWAY] * (STEP + 1))
    assert returning.step() == (STEP, True)
    assert returning.step() == (0, True)
    returning.heartbeats()
    assert returning.step() == (1, False)


def test_broker_that_is_catching_up_gets_smaller_steps() -> None:
    returning = Returning(*[AWAY] * STEP, P(2, (2, 3)))
    assert returning.step() == (STEP // 4, True)


def test_broker_with_late_heartbeats_gets_smaller_steps() -> None:
    returning = Returning(*[AWAY] * STEP)
    returning.now += 0.6
    assert returning.step() == (STEP // 4, True)


def test_each_broker_has_its_own_pace() -> None:
    """Node 3 is behind with its metadata; node 1 does not wait for it."""
    to_three = P(2, (1, 2, 3), replicas=(3, 2, 1))
    returning = Returning(*[to_three] * (STEP + 2), *[AWAY] * 2)
    assert returning.step() == (STEP + 2, True)
    assert returning.step() == (0, True), "only partitions of node 3 are left"
    node, broker = NodeId(3), returning.image.brokers[NodeId(3)]
    returning.sessions.touched(node, broker.epoch, returning.image.offset, returning.now)
    assert returning.step() == (2, False)


def test_broker_without_a_session_gets_nothing() -> None:
    returning = Returning(AWAY)
    returning.sessions.clear()
    assert returning.step() == (0, True)


def test_suspect_broker_gets_nothing() -> None:
    """A broker that lost a connection may be dead, and not be fenced yet."""
    returning = Returning(AWAY)
    returning.sessions.suspect(NodeId(1))
    assert returning.step() == (0, True)
    returning.heartbeats()
    assert returning.step() == (1, False)


def test_broker_that_a_new_controller_has_not_heard_gets_nothing() -> None:
    """Another broker's heartbeat makes a step due; node 1 may have died before the takeover."""
    returning = Returning(AWAY)
    returning.returns.reset(NOW)
    returning.sessions.begin(returning.image, NOW, {})
    node = NodeId(2)
    for is_due in (False, True):
        returning.now += LOOK_SECONDS
        returning.sessions.touched(
            node, returning.image.brokers[node].epoch, returning.image.offset, returning.now
        )
        now = returning.now
        assert returning.returns.is_due(returning.image, returning.sessions, now) is is_due
    assert returning.step() == (0, True)
    returning.heartbeats()
    assert returning.step() == (1, False)


def test_step_that_could_not_be_stored_is_repeated_soon() -> None:
    returning = Returning(AWAY)
    returning.returns.reset(NOW)
    for _ in range(2):
        returning.now += LOOK_SECONDS
        returning.heartbeats()
        is_due = returning.returns.is_due(returning.image, returning.sessions, returning.now)
    assert is_due
    returning.returns.retry(returning.now)
    returning.now += STEP_SECONDS
    assert returning.returns.is_due(returning.image, returning.sessions, returning.now)


def test_departing_broker_gets_nothing() -> None:
    """It leaves its in-sync sets in steps, and is fenced after the last one."""
    returning = Returning(AWAY)
    returning.departing = (NodeId(1),)
    assert returning.step() == (0, True)
    returning.departing = ()
    assert returning.step() == (1, False)


class Watching:
    """A controller that watches brokers return."""

    def __init__(self, *partitions: P) -> None:
        self.image: Image = cluster(*partitions)
        self.sessions = Sessions(ControllerSettings())
        self.returns = BrokerReturns()
        self.now = NOW

    def is_due(self, after: float = LOOK_SECONDS) -> bool:
        """Whether leaderships return now; all live brokers have sent heartbeats."""
        self.now += after
        for broker in self.image.brokers.values():
            if not broker.is_fenced:
                self.sessions.touched(broker.id, broker.epoch, self.image.offset, self.now)
        return self.returns.is_due(self.image, self.sessions, self.now)

    def set_fenced(self, node: int, *, is_fenced: bool) -> None:
        broker = self.image.brokers[NodeId(node)]
        changed = structs.replace(broker, is_fenced=is_fenced, epoch=broker.epoch + is_fenced)
        self.image = structs.replace(
            self.image, brokers={**self.image.brokers, NodeId(node): changed}
        )

    def replace_partition(self, partition: P) -> None:
        other = cluster(partition)
        self.image = structs.replace(
            self.image, topics_by_name=other.topics_by_name, topics_by_id=other.topics_by_id
        )

    def wait_of_next_return(self, node: int) -> float:
        """Seconds until leaderships return to a broker that fails once more."""
        self.set_fenced(node, is_fenced=True)
        assert not self.is_due()
        self.set_fenced(node, is_fenced=False)
        self.is_due(0.0)
        began = self.now
        while not self.is_due():
            assert self.now - began < REPEATED_SECONDS
        return self.now - began


def test_leaderships_return_when_the_broker_is_in_sync() -> None:
    watching = Watching(AWAY)
    assert not watching.is_due()
    assert watching.is_due(), "a new controller starts with all brokers"
    assert not watching.is_due()
    watching.set_fenced(1, is_fenced=True)
    watching.replace_partition(P(2, (2, 3)))
    assert not watching.is_due()
    watching.set_fenced(1, is_fenced=False)
    assert not any(watching.is_due() for _ in range(10)), "it is catching up"
    watching.replace_partition(AWAY)
    assert watching.is_due()
    assert not any(watching.is_due() for _ in range(10)), "once for each return"


def test_new_controller_waits_for_heartbeats() -> None:
    """The last controller may be dead, and not be fenced yet."""
    watching = Watching(AWAY)
    watching.sessions.begin(watching.image, NOW, {})
    for _ in range(10):
        watching.now += LOOK_SECONDS
        assert not watching.returns.is_due(watching.image, watching.sessions, watching.now)
    assert watching.is_due()


def test_replica_that_moves_to_a_broker_does_not_delay_the_return() -> None:
    watching = Watching(P(2, (1, 2, 3), replicas=(1, 2, 3, 4), adding=(4,)))
    watching.is_due()
    assert watching.is_due()


def test_broker_that_fails_again_waits_longer_each_time() -> None:
    watching = Watching(AWAY)
    watching.is_due()
    assert watching.is_due()
    waits = [round(watching.wait_of_next_return(1)) for _ in range(5)]
    assert waits == [0, 1, 2, 4, 8]
    assert round(watching.wait_of_next_return(2)) == 0, "another broker"
    watching.now += REPEATED_SECONDS
    assert round(watching.wait_of_next_return(1)) == 0


def test_broker_that_must_wait_gets_no_leaderships_in_the_steps_of_others() -> None:
    returning = Returning(AWAY)
    watching = Watching(AWAY)
    watching.returns = returning.returns.returns
    watching.is_due()
    watching.is_due()
    for _ in range(3):
        watching.wait_of_next_return(1)
    watching.set_fenced(1, is_fenced=True)
    watching.is_due()
    watching.set_fenced(1, is_fenced=False)
    watching.is_due()
    returning.now = watching.now
    returning.heartbeats()
    assert returning.step() == (0, False), "it is due again when its wait ends"
    returning.now += 5
    returning.heartbeats()
    assert returning.step() == (1, False)


def test_returns_of_long_ago_are_forgotten() -> None:
    watching = Watching(AWAY)
    watching.is_due()
    watching.is_due()
    watching.wait_of_next_return(1)
    assert list(watching.returns.times) == [NodeId(1)]
    watching.now += REPEATED_SECONDS
    watching.wait_of_next_return(2)
    assert list(watching.returns.times) == [NodeId(2)]
