"""Decommissioned brokers that died are unregistered, and no others."""

from __future__ import annotations

import asyncio

import pytest

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.balancing.absences import absence_records
from riverrun.cluster.brokers.modes import BrokerMode, mode_of
from riverrun.metadata.image import Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.ids import NodeId
from riverrun.server.controller_link.retirement import Retirement
from tests.cluster.fakes import FakeClock, MemoryLog, make_configs, replayed
from tests.cluster.states import P, cluster

FOUR = NodeId(4)


def dead(*, mode: str = "decommissioning", replicas: tuple[int, ...] = (1, 2, 3)) -> Image:
    """Broker 4 has been away since 1,000 s."""
    image = cluster(P(1, (1,), replicas=replicas), brokers=(1, 2, 3, 4), fenced=(4,))
    record = ConfigRecord(resource_type=4, resource_name="4", name="broker.mode", value=mode)
    image = replayed(image, [record])
    return replayed(image, absence_records(image, 1_000_000))


def brokers_after(image: Image, seconds: float, voters: tuple[int, ...] = (1, 2, 3)) -> Image:
    clock, log = FakeClock(), MemoryLog(image)
    clock.now = 1000.0 + seconds
    retirement = Retirement(
        ActiveController(log, make_configs(), clock=clock),
        log,
        clock,
        voters=lambda: [NodeId(node) for node in voters],
        interval_seconds=1.0,
    )
    asyncio.run(retirement.check())
    return log.newest


def test_decommissioned_broker_that_died_is_unregistered_after_a_minute() -> None:
    assert FOUR in brokers_after(dead(), 59.0).brokers
    image = brokers_after(dead(), 60.0)
    assert list(image.brokers) == [1, 2, 3]
    assert mode_of(image, FOUR) is BrokerMode.ACTIVE, "a new broker with this id starts afresh"


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
