"""A turn of the loop that takes too long is counted, one that does not is not."""

import asyncio

from riverrun.ports.metrics import Metrics
from riverrun.server.watchdog import INTERVAL_SECONDS, Watchdog


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
