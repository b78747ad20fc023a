"""The clickstream of the demo: events at a steady rate, before a node is killed and after it.

How soon the node is killed depends on how fast Spark starts on the machine, so the stream has no
fixed length: it goes on until the kill has happened and enough events after it are acknowledged.
Waiting for a kill that does not come, it stops writing at three times the length asked for.
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
TIMES_AS_LONG_MAX = 3
LOOK_EVERY_SECONDS = 0.05


class Stream:
    """Written by a thread. ``acknowledged`` events with the ids from 0 on are in the topic."""

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
        return self._count * TIMES_AS_LONG_MAX

    @property
    def is_waiting(self) -> bool:
        """All that may be written before the kill is acknowledged."""
        return self.acknowledged >= self.before_kill_max

    def node_was_killed(self) -> None:
        self.killed_after = self.acknowledged
        self._is_killed.set()

    def stop(self) -> None:
        """End at once, whatever is written by then."""
        self._is_stopped = True
        self.has_ended(within_seconds=AFTER_KILL_SECONDS)

    @property
    def _end(self) -> int:
        """How many to write, as far as is known now."""
        if not self._is_killed.is_set():
            return self.before_kill_max
        return max(self._count, self.killed_after + self._rate * AFTER_KILL_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._write())
        except (KafkaError, OSError) as error:
            self.failure = str(error) or type(error).__name__
        except BaseException as error:  # a bug, which whoever waits for us has to hear of as well
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
                    await asyncio.sleep(LOOK_EVERY_SECONDS)
