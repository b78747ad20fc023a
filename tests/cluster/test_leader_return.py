"""Leadership returns to a broker in steps, at the pace that it can follow."""

from __future__ import annotations

from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.partitions.leader_return import LeaderReturn
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
        self.heartbeats()

    def heartbeats(self) -> None:
        for broker in self.image.brokers.values():
            self.sessions.touched(broker.id, broker.epoch, self.image.offset, self.now)

    def step(self) -> tuple[int, bool]:
        """The number of leaderships that returned, and whether more remain."""
        decision = self.returns.step(CONFIGS, self.image, self.sessions, self.now)
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
