"""Decommissioned brokers that died are unregistered, and no others."""

from __future__ import annotations

import asyncio

import pytest

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.balancing.absences import absence_records
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.brokers.modes import BrokerMode, mode_of
from riverrun.cluster.configs.node_configs import Configs
from riverrun.metadata.image import Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.server.controller_link.retirement import Retirement
from riverrun.storage.settings import LogSettings
from tests.cluster.fakes import FakeClock, MemoryLog, declared, registration, replayed
from tests.cluster.messages import registration_request
from tests.cluster.states import P, cluster

FOUR = NodeId(4)


def dead(*, mode: str = "decommissioning", replicas: tuple[int, ...] = (1, 2, 3)) -> Image:
    """Broker 4 has been away since 1,000 s."""
    image = cluster(P(1, (1,), replicas=replicas), brokers=(1, 2, 3, 4), fenced=(4,))
    record = ConfigRecord(resource_type=4, resource_name="4", name="broker.mode", value=mode)
    image = replayed(image, [record])
    return replayed(image, absence_records(image, 1_000_000))


class Scene:
    """A controller that became active 10 seconds before the check."""

    def __init__(
        self,
        image: Image,
        seconds: float,
        voters: tuple[int, ...] = (1, 2, 3),
        timeout_seconds: int = 1,
    ) -> None:
        texts = {"self.healing.timeout": str(timeout_seconds * 1000)}
        configs = Configs(
            (*declared(), *BalanceSettings.declared()),
            given=texts,
            node_id=NodeId(1),
            log=LogSettings(),
        )
        self.clock, self.log = FakeClock(), MemoryLog(image)
        self.clock.now = 1000.0 + seconds - 10.0
        self.controller = ActiveController(self.log, configs, clock=self.clock)
        self.retirement = Retirement(
            self.controller,
            self.log,
            configs,
            BalanceSettings.from_texts(texts),
            self.clock,
            voters=lambda: [NodeId(node) for node in voters],
        )

    async def lead(self) -> None:
        self.controller.on_leadership(True, LeaderEpoch(2))
        self.clock.now += 10.0


def brokers_after(
    image: Image, seconds: float, voters: tuple[int, ...] = (1, 2, 3), timeout_seconds: int = 1
) -> Image:
    scene = Scene(image, seconds, voters, timeout_seconds)

    async def play() -> None:
        await scene.lead()
        await scene.retirement.check()

    asyncio.run(play())
    return scene.log.newest


def test_decommissioned_broker_that_died_is_unregistered_after_a_minute() -> None:
    assert FOUR in brokers_after(dead(), 59.0).brokers
    assert list(brokers_after(dead(), 60.0).brokers) == [1, 2, 3]


def test_broker_may_be_away_as_long_as_healing_waits() -> None:
    assert FOUR in brokers_after(dead(), 1799.0, timeout_seconds=1800).brokers
    assert FOUR not in brokers_after(dead(), 1800.0, timeout_seconds=1800).brokers


def test_broker_that_comes_back_is_still_decommissioned() -> None:
    image = brokers_after(dead(), 60.0)
    image = replayed(image, [registration(image, 4)])
    assert mode_of(image, FOUR) is BrokerMode.DECOMMISSIONING


def test_broker_that_has_just_registered_again_stays_registered() -> None:
    scene = Scene(dead(), 600.0)

    async def play() -> None:
        await scene.lead()
        await scene.controller.register(registration_request(4, 2))
        assert scene.log.newest.brokers[FOUR].is_fenced
        await scene.retirement.check()
        assert FOUR in scene.log.newest.brokers
        scene.clock.now += 10.0
        await scene.retirement.check()
        assert FOUR not in scene.log.newest.brokers

    asyncio.run(play())


def test_refused_decision_is_repeated_by_the_next_check() -> None:
    scene = Scene(dead(), 600.0)

    async def play() -> None:
        await scene.lead()
        scene.log.error = OSError("no space")
        with pytest.raises(KafkaError):
            await scene.retirement.check()
        scene.log.error = None
        await scene.retirement.check()

    asyncio.run(play())
    assert FOUR not in scene.log.newest.brokers


def test_nobody_is_unregistered_before_this_node_acts_as_the_controller() -> None:
    scene = Scene(dead(), 600.0)
    asyncio.run(scene.retirement.check())
    assert FOUR in scene.log.newest.brokers


@pytest.mark.parametrize(
    "image",
    [
        dead(mode="active"),
        dead(mode="maintenance"),
        dead(replicas=(1, 2, 4)),
        replayed(
            cluster(P(1, (1,)), brokers=(1, 2, 3, 4)),
            [
                ConfigRecord(
                    resource_type=4, resource_name="4", name="broker.mode", value="decommissioning"
                )
            ],
        ),
    ],
    ids=["active", "maintenance", "with replicas", "alive"],
)
def test_other_brokers_stay_registered(image: Image) -> None:
    assert FOUR in brokers_after(image, 10_000.0).brokers


def test_voter_stays_registered() -> None:
    assert FOUR in brokers_after(dead(), 10_000.0, voters=(1, 2, 4)).brokers
