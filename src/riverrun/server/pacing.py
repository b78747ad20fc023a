"""Consumers that rest when they are served too fast, served at the speed that they can take.

librdkafka, which is under most clients that are not Java, fetches ahead into a queue. Once 100,000
records or 64 MiB wait there it does not fetch for a whole second (``queued.min.messages``,
``queued.max.messages.kbytes``, ``fetch.queue.backoff.ms``), however soon its application has
emptied the queue. An application that takes a million records a second works for a tenth of a
second, then, and rests for nine tenths: the faster the broker, the more rests.

So the answers to such a client are spaced. At first as for an application that needs 0.85
microseconds for a record and a fifth of a nanosecond for a byte (Python on a machine that it shares
with us), with a part of a queue sent ahead at once. How long the library is away between an answer
and its next request tells of that machine. It only parses: if it always takes twice as long, the
machine is slow, or else the network; if it does so now and then, it waits for a processor, and its
application does so too. We hope then that the application is slowed down as much, and fear that it
is more, for the library wakes up more often and has the better turn. The application gets what it
could take by our hope, while that would not fill most of its queue by our fear. A library that is
held back leaves the processor to its application.

What a client does then tells its speed: while it never rests, its queue does not fill, and it is
served faster, step by step; when it rests, its queue was full, and what it took until then is its
speed. A step too far costs a rest of a second, so the next one is not tried soon, unless two in a
row were none too far: then the application has become faster.

A client has one queue for all brokers. Who rests before it got a whole queue from us has others,
and so much of it is ours from then on.

An application that needs a second for a queue is not hurt by rests, and nobody is served slower
than that. Nor is a client helped that rests however slowly it is served, since it pauses by itself:
it gets all at once.

Nobody waits who reads at the end of the log, unless it paused by itself a moment ago: the time that
an answer takes is counted from the one before, and not from when it was asked for. An answer
without records is never held back.
"""

from __future__ import annotations

import math
from typing import Final

from riverrun.ports.files import Buffer
from riverrun.records.batch import HEADER_BYTES, MAGIC, read_header
from riverrun.records.record import RECORD_BYTES_MIN

QUEUE_RECORDS: Final = 100_000
QUEUE_BYTES: Final = 64 * 1024 * 1024
REST_SECONDS: Final = (0.95, 1.3)
"""``fetch.queue.backoff.ms`` is 1000; what takes longer or shorter has other reasons."""
RECORD_SECONDS: Final = 0.85e-6
BYTE_SECONDS: Final = 0.2e-9
PARSE_RECORD_SECONDS: Final = 0.22e-6
PARSE_BYTE_SECONDS: Final = 0.41e-9
"""What the library needs between an answer and its next request, on a machine that is not busy."""
RETURN_BYTES_MIN: Final = 64 * 1024
"""Small answers tell more of the network."""
RETURN_SOONER, RETURN_LATER = 0.2, 0.1
"""How far a return that was sooner or later than others is believed: some are late by chance."""
SOONEST_DRIFT: Final = 1.01
"""The soonest return is forgotten little by little."""
USUAL: Final = 1.3
"""A return takes usually so much longer than the soonest."""
SLOWER_MAX: Final = 1.6
"""A slow machine is slow each time. So is a slow network, and its application is not: there is no
telling them apart."""
HOPED_MAX, FEARED_MAX = 2.5, 4.0
FEARED_LEAST, FEARED_POWER = 1.1, 1.5
EXPANSION: Final = 4
"""What compressed batches may grow to in the client's queue; a guess."""
AHEAD_HOPED, AHEAD_FEARED = 0.3, 0.8
"""The part of a queue that is sent at once, and the part that may wait there if the application is
as slow as we fear."""
DELAY_SECONDS_MIN: Final = 0.0005
"""Less than a timer can tell; it is made up for by the next delay."""
DELAY_SECONDS_MAX: Final = 0.1
SPEED_MAX: Final = 64.0
STEP: Final = 1.25
CAUTION: Final = 0.97
QUEUES_MIN: Final = 8
"""So many queues that were taken without a rest: the client is at most an eighth slower than we
are, and a quarter more is worth a try."""
PATIENCE_SECONDS: Final = (1.0, 30.0)
"""How long no step is tried after a rest, at first and at most: the rests that steps cost take a
thirtieth of the time."""
SHARE_MIN: Final = 0.1
SHARE_CAUTION: Final = 0.9
"""Its application has taken some of what came until then."""
QUEUES_SURE: Final = 4
"""An application begins slowly. What it took of less than this is half of the truth."""
QUEUES_LEAST: Final = 0.25
"""Of our share. Who got less than this rests for other reasons."""
RESTS_MAX: Final = 6
"""Slower service has not helped whom we see rest more often, without a step in between."""


def rests(software_name: str, software_version: str) -> bool:
    """Whether a client is librdkafka, or built upon it: those say so in their version, as in
    ``confluent-kafka-python 2.16.1-rdkafka-2.16.0``."""
    return "rdkafka" in software_name or "rdkafka" in software_version


class Served:
    """What a client got from some moment on: work for its application, and how often that would
    have filled our share of its queue."""

    __slots__ = ("queues", "since", "work")

    def __init__(self, since: float) -> None:
        self.since = since
        self.work = 0.0
        self.queues = 0.0

    def speed(self, until: float) -> float:
        """How fast its application is at least, when its queue is full at last: all but a queue was
        taken. It may have been faster, if there was something in the queue at first, or nothing at
        times."""
        if self.queues <= 1:
            return 0.0
        return self.work * (1 - 1 / self.queues) / max(until - self.since, 1e-3)


class Schedule:
    """When the next answer is due, if a part of a queue may be ahead of it."""

    __slots__ = ("ahead", "due")

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead
        self.due = 0.0

    def add(self, now: float, seconds: float, queues: float) -> None:
        """An answer leaves that an application needs so long for."""
        seconds = min(seconds, queues * REST_SECONDS[0])
        due = max(self.due, now - self.ahead * seconds / queues) + seconds
        self.due = min(due, now + DELAY_SECONDS_MAX)


class Pace:
    """The speed of one consumer's connection, in multiples of the speed assumed at first."""

    __slots__ = (
        "_answered_at",
        "_away",
        "_feared",
        "_hoped",
        "_is_measured",
        "_parse_seconds",
        "_patience",
        "_rests",
        "_share",
        "_since_rest",
        "_since_step",
        "_soonest",
        "_steps",
        "speed",
    )

    def __init__(self) -> None:
        self.speed = 1.0
        self._share = 1.0  # of the client's queue
        self._patience = 0.0
        self._steps = 0  # since the last rest
        self._rests = 0  # since the last step
        self._is_measured = False
        self._parse_seconds = 0.0  # of the last answer, 0 if it tells nothing
        self._away = 1.0  # in multiples of that
        self._soonest = math.inf
        self._hoped = Schedule(AHEAD_HOPED)
        self._feared = Schedule(AHEAD_FEARED)
        self._answered_at = 0.0
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        """The queue is empty."""
        self._since_rest = Served(now)
        self._since_step = Served(now)

    def asked(self, now: float) -> float:
        """The client wants more: the seconds until it should get it."""
        silent, step = now - self._answered_at, self._since_step
        if silent >= REST_SECONDS[0]:
            if silent <= REST_SECONDS[1] and self._since_rest.queues >= QUEUES_LEAST:
                self._rested()
            self._begin(now)
        else:
            self._returned(silent)
            if step.queues >= QUEUES_MIN and now - step.since >= self._patience:
                self._speed_up(now)
        delay = max(self._hoped.due, self._feared.due) - now
        return delay if delay >= DELAY_SECONDS_MIN else 0.0

    def _returned(self, seconds: float) -> None:
        if self._parse_seconds:
            away = seconds / self._parse_seconds
            self._soonest = min(self._soonest * SOONEST_DRIFT, away)
            more = away - self._away
            self._away += more * (RETURN_LATER if more > 0 else RETURN_SOONER)

    def sent(self, now: float, size: int, first: Buffer) -> None:
        """An answer with so many bytes of batches leaves; ``first`` begins with one of them."""
        self._answered_at, self._parse_seconds = now, 0.0
        if size == 0:
            return
        records, filled = _counted(size, first)
        if size >= RETURN_BYTES_MIN:
            self._parse_seconds = records * PARSE_RECORD_SECONDS + filled * PARSE_BYTE_SECONDS
        work = records * RECORD_SECONDS + filled * BYTE_SECONDS
        queues = max(records / QUEUE_RECORDS, filled / QUEUE_BYTES) / self._share
        for served in (self._since_rest, self._since_step):
            served.work += work
            served.queues += queues
        # The speed may have been learnt from other kinds of records: a schedule has its own limit.
        seconds = work / self.speed
        if self._is_measured:
            self._hoped.add(now, seconds, queues)
        else:
            usual = max(self._soonest * USUAL, 1.0) if self._soonest < math.inf else 1.0
            busy = max(self._away / usual, 1.0)
            seconds *= min(usual, SLOWER_MAX)
            self._hoped.add(now, seconds * min(busy, HOPED_MAX), queues)
            self._feared.add(
                now, seconds * min(FEARED_LEAST * busy**FEARED_POWER, FEARED_MAX), queues
            )

    def _speed_up(self, now: float) -> None:
        self.speed = min(self.speed * STEP, SPEED_MAX)
        self._since_step = Served(now)
        self._rests = 0
        self._steps += 1
        if self._steps > 1:
            self._patience = 0.0

    def _rested(self) -> None:
        rest, step, until = self._since_rest, self._since_step, self._answered_at
        if rest.queues <= 1:
            self._share = max(self._share * rest.queues * SHARE_CAUTION, SHARE_MIN)
            return
        self._steps = 0
        self._rests += 1
        known = CAUTION * max(rest.speed(until), step.speed(until))
        if self._rests > RESTS_MAX:
            self.speed, self._share, self._patience, self._rests = SPEED_MAX, 1.0, 0.0, 0
        elif known * REST_SECONDS[0] > rest.work / rest.queues:
            if rest.queues < QUEUES_SURE and not self._is_measured:
                known = math.sqrt(known * self.speed)
            self.speed, self._is_measured = known, True
            self._patience = min(max(self._patience * 2, PATIENCE_SECONDS[0]), PATIENCE_SECONDS[1])


def _counted(size: int, first: Buffer) -> tuple[int, int]:
    """The records of so many bytes, and what they fill of a queue, if all batches are like the
    first."""
    records, filled = 0, size
    if len(first) >= HEADER_BYTES:
        header = read_header(first)
        if header.magic == MAGIC:
            records = size * max(header.count, 0) // max(header.size, HEADER_BYTES)
            if header.compression:
                filled = size * EXPANSION
            # Nobody has counted them: a false number must not slow down who reads it.
            records = min(records, filled // RECORD_BYTES_MIN)
    return records, filled
