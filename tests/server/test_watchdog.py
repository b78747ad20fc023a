"""Long event-loop iterations are counted, and very long ones logged."""

import asyncio

from structlog.testing import capture_logs

from riverrun.ports.metrics import Metrics
from riverrun.server.watchdog import INTERVAL_SECONDS, LOGGED_STALL_SECONDS, Watchdog


class Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.stalled_seconds = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self._loop.time() + self.stalled_seconds


def test_stalls_are_counted() -> None:
    async def scenario() -> None:
        clock, metrics = Clock(asyncio.get_running_loop()), Metrics()
        watchdog = Watchdog(clock, metrics)
        stalls = metrics.counter("riverrun_loop_stalls_total", "")
        watchdog.start()
        clock.stalled_seconds += 10
        await asyncio.sleep(INTERVAL_SECONDS * 2)
        counted = stalls.value
        assert counted == 1
        watchdog.stop()
        clock.stalled_seconds += 10
        await asyncio.sleep(INTERVAL_SECONDS * 2)
        assert stalls.value == counted, "counted after the stop"

    asyncio.run(scenario())


def test_short_stall_is_counted_but_not_logged() -> None:
    async def scenario() -> list[float]:
        clock, metrics = Clock(asyncio.get_running_loop()), Metrics()
        watchdog = Watchdog(clock, metrics)
        stalls = metrics.counter("riverrun_loop_stalls_total", "")
        counts: list[float] = []
        for seconds in (LOGGED_STALL_SECONDS / 2, LOGGED_STALL_SECONDS * 4):
            watchdog.start()
            clock.stalled_seconds += seconds
            await asyncio.sleep(INTERVAL_SECONDS * 2)
            watchdog.stop()
            counts.append(stalls.value)
        return counts

    with capture_logs() as lines:
        counts = asyncio.run(scenario())
    assert counts[0] >= 1
    assert counts[1] > counts[0]
    assert [line["event"] for line in lines] == ["event loop stalled"]
    assert lines[0]["stalls"] >= 2
