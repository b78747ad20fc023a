"""A long wait is explained, once per cause."""

import asyncio
from collections.abc import Callable

import pytest

from riverrun.cli.support.wait_reporter import REPORT_AFTER_SECONDS, WaitReporter
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
def printed() -> list[str]:
    return []


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def reporter(printed: list[str], timers: Timers) -> WaitReporter:
    return WaitReporter(printed.append, timers.call_later)


def test_a_quick_response_prints_nothing(
    reporter: WaitReporter, printed: list[str], timers: Timers
) -> None:
    reporter.wait_for("rain")
    reporter.failed(NO_LEADER)
    timers.pass_seconds(REPORT_AFTER_SECONDS - 0.1)
    reporter.progressed()
    timers.pass_seconds(REPORT_AFTER_SECONDS - 0.1)
    reporter.done()
    timers.pass_seconds(60)
    reporter.failed(NO_LEADER)
    assert printed == []


def test_each_cause_is_printed_once(
    reporter: WaitReporter, printed: list[str], timers: Timers
) -> None:
    reporter.wait_for("rain")
    reporter.failed(NO_LEADER)
    timers.pass_seconds(REPORT_AFTER_SECONDS)
    expected = "waiting for rain: partition t-0 has no leader (LEADER_NOT_AVAILABLE)"
    assert printed == [expected]
    for order in ("a, b", "b, a"):
        reporter.failed(NO_LEADER)
        reporter.failed(ClusterUnreachable(f"no node answers: {order}"))
    assert printed == [expected, "still waiting: no node answers: a, b"]
    reporter.wait_for("rain")
    reporter.failed(NO_LEADER)
    timers.pass_seconds(REPORT_AFTER_SECONDS)
    assert len(printed) == 2


def test_a_long_wait_without_a_failure_is_reported_too(
    reporter: WaitReporter, printed: list[str], timers: Timers
) -> None:
    reporter.wait_for("rain")
    timers.pass_seconds(REPORT_AFTER_SECONDS)
    assert printed == ["waiting for rain"]
    reporter.failed(NO_LEADER)
    assert printed[1:] == ["still waiting: partition t-0 has no leader (LEADER_NOT_AVAILABLE)"]
