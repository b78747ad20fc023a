"""A turn of the loop that takes too long is counted, one that does not is not."""

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


def test_late_turns_are_counted() -> None:
    async def story() -> None:
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
        assert stalls.value == counted, "nobody looks any more"

    asyncio.run(story())


def test_a_short_one_is_counted_and_not_told() -> None:
    async def story() -> list[float]:
        clock, metrics = Clock(asyncio.get_running_loop()), Metrics()
        watchdog = Watchdog(clock, metrics)
        stalls = metrics.counter("riverrun_loop_stalls_total", "")
        counts = []
        for seconds in (LOGGED_STALL_SECONDS / 2, LOGGED_STALL_SECONDS * 4):
            watchdog.start()
            clock.stalled_seconds += seconds
            await asyncio.sleep(INTERVAL_SECONDS * 2)
            watchdog.stop()
            counts.append(stalls.value)
        return counts

    with capture_logs() as lines:
        counts = asyncio.run(story())
    assert counts[0] >= 1
    assert counts[1] > counts[0]
    assert [line["event"] for line in lines] == ["event loop stalled"]
    assert lines[0]["stalls"] >= 2
