"""A long wait is explained, once per cause."""

import asyncio
from collections.abc import Callable

import pytest

from riverrun.cli.support.patience import SAY_AFTER_S, Patience
from riverrun.client.pool import ClusterUnreachable
from riverrun.model.errors import ErrorCode, KafkaError

NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "partition t-0 has no leader")


class Timers:
    """Time that the test advances."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.close()
        self._handles: list[asyncio.TimerHandle] = []
        self._now = 0.0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._now + seconds, callback, (), self._loop)
        self._handles.append(handle)
        return handle

    def pass_seconds(self, seconds: float) -> None:
        self._now += seconds
        due = [one for one in self._handles if one.when() <= self._now]
        self._handles = [one for one in self._handles if one not in due]
        for handle in due:
            if not handle.cancelled():
                handle._run()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def patience(said: list[str], timers: Timers) -> Patience:
    return Patience(said.append, timers.call_later)


def test_a_quick_response_prints_nothing(
    patience: Patience, said: list[str], timers: Timers
) -> None:
    patience.wait_for("rain")
    patience.failed(NO_LEADER)
    timers.pass_seconds(SAY_AFTER_S - 0.1)
    patience.moved()
    timers.pass_seconds(SAY_AFTER_S - 0.1)
    patience.done()
    timers.pass_seconds(60)
    patience.failed(NO_LEADER)
    assert said == []


def test_each_cause_is_printed_once(patience: Patience, said: list[str], timers: Timers) -> None:
    patience.wait_for("rain")
    patience.failed(NO_LEADER)
    timers.pass_seconds(SAY_AFTER_S)
    told = "waiting for rain: partition t-0 has no leader (LEADER_NOT_AVAILABLE)"
    assert said == [told]
    for order in ("a, b", "b, a"):
        patience.failed(NO_LEADER)
        patience.failed(ClusterUnreachable(f"no node answers: {order}"))
    assert said == [told, "still waiting: no node answers: a, b"]
    patience.wait_for("rain")
    patience.failed(NO_LEADER)
    timers.pass_seconds(SAY_AFTER_S)
    assert len(said) == 2


def test_a_long_wait_without_a_failure_is_reported_too(
    patience: Patience, said: list[str], timers: Timers
) -> None:
    patience.wait_for("rain")
    timers.pass_seconds(SAY_AFTER_S)
    assert said == ["waiting for rain"]
    patience.failed(NO_LEADER)
    assert said[1:] == ["still waiting: partition t-0 has no leader (LEADER_NOT_AVAILABLE)"]
