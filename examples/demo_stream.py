"""The clickstream of the demo: events at a steady rate, before and after a node is killed.

The time of the kill depends on how fast Spark starts, so the stream has no fixed length. It ends
when enough events after the kill are acknowledged. Before the kill it writes at most three times
the requested number of events.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time

from events import clicks

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.model.errors import KafkaError
from riverrun.records.record import NewRecord

TOPIC = "clicks"
SLICES_PER_SECOND = 10
AFTER_KILL_SECONDS = 2
LENGTH_FACTOR_MAX = 3
POLL_SECONDS = 0.05


class Stream:
    """Writes from a thread. The topic has the events with ids 0 to ``acknowledged`` - 1."""

    def __init__(self, bootstrap: str, count: int, rate: int) -> None:
        self.acknowledged = 0
        self.killed_after = 0
        self.failure: str | None = None
        self._bootstrap = bootstrap
        self._count = count
        self._rate = rate
        self._slice = max(1, rate // SLICES_PER_SECOND)
        self._is_killed = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="clickstream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def has_ended(self, within_seconds: float = 0) -> bool:
        self._thread.join(within_seconds)
        return not self._thread.is_alive()

    @property
    def before_kill_max(self) -> int:
        return self._count * LENGTH_FACTOR_MAX

    @property
    def is_waiting(self) -> bool:
        """Whether all events that may be written before the kill are acknowledged."""
        return self.acknowledged >= self.before_kill_max

    def node_was_killed(self) -> None:
        self.killed_after = self.acknowledged
        self._is_killed.set()

    def stop(self) -> None:
        """End at once."""
        self._is_stopped = True
        self.has_ended(within_seconds=AFTER_KILL_SECONDS)

    @property
    def _end(self) -> int:
        """The number of events to write, as known now."""
        if not self._is_killed.is_set():
            return self.before_kill_max
        return max(self._count, self.killed_after + self._rate * AFTER_KILL_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._write())
        except (KafkaError, OSError) as error:
            self.failure = str(error) or type(error).__name__
        except BaseException as error:  # a bug; the demo must see it too
            self.failure = repr(error)
            raise

    async def _write(self) -> None:
        async with ConnectionPool(parse_bootstrap(self._bootstrap)) as pool:
            producer = await Producer.open(pool, TOPIC)
            events = clicks(0, time.time())
            due = time.monotonic()
            while not self._is_stopped:
                part = min(self._slice, self._end - self.acknowledged)
                if part > 0:
                    for _, key, value in (next(events) for _ in range(part)):
                        now_ms = int(time.time() * 1000)
                        data = json.dumps(value).encode()
                        record = NewRecord(key=key.encode(), value=data, timestamp=now_ms)
                        if producer.add(record):
                            await producer.flush()
                    await producer.flush()
                    self.acknowledged += part
                    due = max(due + part / self._rate, time.monotonic() - 1)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                elif self._is_killed.is_set():
                    return
                else:
                    await asyncio.sleep(POLL_SECONDS)
