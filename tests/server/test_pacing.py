"""The speed of consumers that rest when they are served too fast."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import pytest

from riverrun.records.batch import HEADER, MAGIC, OVERHEAD_BYTES
from riverrun.records.record import RECORD_BYTES_MIN
from riverrun.server.pacing import DELAY_SECONDS_MAX, QUEUE_BYTES, QUEUE_RECORDS, Pace, rests

ANSWER_BYTES = 1_000_000
FETCH_RATE = 3e6
"""Records that the client's library parses in a second."""


def batch(records: int, size: int, codec: int = 0) -> bytes:
    """The header of a batch."""
    return HEADER.pack(0, size - OVERHEAD_BYTES, 0, MAGIC, 0, codec, 0, 0, 0, 0, 0, 0, records)


class Outcome(NamedTuple):
    seconds: float
    rests: int


def consume(
    records: int, *, rate: float, record_bytes: int = 100, pace: Pace | None, expands: int = 1
) -> Outcome:
    """What librdkafka does: fetch while the queue is not full, else nothing for a second. ``rate``
    is what the application takes of it in a second, ``expands`` how far batches unpack."""
    now, taken_at, queued, fetched, count = 100.0, 100.0, 0.0, 0, 0
    per_answer = ANSWER_BYTES * expands // record_bytes
    head = batch(per_answer, ANSWER_BYTES, codec=0 if expands == 1 else 4)

    def take() -> float:
        return max(queued - rate * (now - taken_at), 0.0)

    while fetched < records:
        if pace is not None:
            now += pace.asked(now)
            pace.sent(now, ANSWER_BYTES, head)
        now += per_answer / FETCH_RATE
        queued, taken_at = take() + per_answer, now
        fetched += per_answer
        if queued >= QUEUE_RECORDS or queued * record_bytes >= QUEUE_BYTES:
            now += 1.0
            queued, taken_at = take(), now
            count += 1
    return Outcome(now + queued / rate - 100.0, count)


@pytest.mark.parametrize("rate", [300e3, 700e3, 1e6, 2e6])
def test_an_application_gets_what_it_takes(rate: float) -> None:
    records = int(60 * rate)
    plain = consume(records, rate=rate, pace=None)
    paced = consume(records, rate=rate, pace=Pace())

    assert plain.seconds > 1.5 * records / rate
    assert paced.seconds < 1.2 * records / rate
    assert paced.rests <= 8


@pytest.mark.parametrize("expands", [1, 5])
def test_a_queue_that_is_full_by_its_bytes_counts_as_well(expands: int) -> None:
    records = 20_000_000
    paced = consume(records, rate=400e3, record_bytes=2000, pace=Pace(), expands=expands)

    assert paced.seconds < 1.5 * records / 400e3


def test_the_first_half_million_records_come_without_a_rest() -> None:
    assert consume(500_000, rate=1e6, pace=Pace()).rests == 0
    assert consume(500_000, rate=1e6, pace=None).rests >= 3


def test_who_never_rests_is_soon_served_as_fast_as_we_can() -> None:
    records = int(60 * FETCH_RATE)
    plain = consume(records, rate=2 * FETCH_RATE, pace=None)
    paced = consume(records, rate=2 * FETCH_RATE, pace=Pace())

    assert plain.rests == 0
    assert paced.seconds < 1.1 * plain.seconds


def test_who_is_not_hurt_by_rests_is_not_held_up() -> None:
    records = 2_000_000
    paced = consume(records, rate=50e3, pace=Pace())

    assert paced.seconds < 1.01 * records / 50e3


def served(
    pace: Pace, now: float, queues: float, rate: Callable[[float], float] | None = None
) -> float:
    """When so many queues were sent to a client that parses them as fast as it can, and rests when
    its application, which takes ``rate`` at a time, leaves a whole queue; without one it never
    does."""
    left = queues * QUEUE_RECORDS
    queued, per_answer = 0.0, ANSWER_BYTES // 100
    while left > 0:
        began = now
        now += pace.asked(now)
        pace.sent(now, ANSWER_BYTES, batch(per_answer, ANSWER_BYTES))
        now += per_answer / FETCH_RATE
        left -= per_answer
        if rate is not None:
            queued = max(queued - rate(began) * (now - began), 0.0) + per_answer
            if queued >= QUEUE_RECORDS:
                queued = max(queued - rate(now), 0.0)
                now += 1.0
    return now


@pytest.mark.parametrize("brokers", [2, 3, 5])
def test_a_client_of_several_brokers_has_one_queue_for_all_of_them(brokers: int) -> None:
    assert from_many([Pace() for _ in range(brokers)], rate=1e6, seconds=60) > 0.6 * 60e6


def from_many(paces: list[Pace], *, rate: float, seconds: float) -> float:
    """The records that an application takes which reads from many brokers, each for itself."""
    start = 100.0
    per_answer = ANSWER_BYTES // 100
    queued, taken, last = 0.0, 0.0, start
    turns = [(start + 0.001 * place, place, False) for place in range(len(paces))]
    while turns[0][0] < start + seconds:
        now, place, is_answer = heapq.heappop(turns)
        took = min(queued, rate * (now - last))
        queued, taken, last = queued - took, taken + took, now
        if is_answer:
            queued += per_answer
        if queued >= QUEUE_RECORDS:
            heapq.heappush(turns, (now + 1.0, place, False))
            continue
        sent_at = now + paces[place].asked(now)
        paces[place].sent(sent_at, ANSWER_BYTES, batch(per_answer, ANSWER_BYTES))
        heapq.heappush(turns, (sent_at + per_answer / FETCH_RATE, place, True))
    return taken


@pytest.mark.parametrize(("slow", "seconds_max"), [(80e3, 45.0), (200e3, 80.0)])
def test_an_application_that_was_slow_for_minutes_is_soon_served_fast_again(
    slow: float, seconds_max: float
) -> None:
    pace = Pace()
    now = served(pace, 100.0, 300 * slow / QUEUE_RECORDS, lambda _: slow)

    began, queues = now, 0
    while pace.speed < 2.0:
        now = served(pace, now, 1)
        queues += 1
        assert now - began < seconds_max, f"{queues} queues, speed {pace.speed}"


@pytest.mark.parametrize("queues", [0.7, 2, 5, 20, 50])
def test_who_pauses_by_itself_is_not_served_slower_and_slower(queues: float) -> None:
    pace, began = Pace(), 100.0
    now = began
    for _ in range(100):
        now = served(pace, now, queues) + 1.0

    plain = 100 * (queues * QUEUE_RECORDS / FETCH_RATE + 1.0)
    assert now - began < 1.4 * plain


def test_bursts_at_the_end_of_the_log_are_not_rests() -> None:
    pace, now = Pace(), 100.0
    for _ in range(50):
        now = served(pace, now, 5)
        for _ in range(4):  # polls that bring nothing
            assert pace.asked(now) <= DELAY_SECONDS_MAX
            now += 0.5
            pace.sent(now, 0, b"")

    assert pace.speed > 10


def test_a_debt_is_forgiven_after_a_moment() -> None:
    pace = Pace()
    for _ in range(100):
        pace.sent(1.0, 50_000_000, batch(500_000, 50_000_000))

    assert pace.asked(1.0 + DELAY_SECONDS_MAX) == 0.0


def test_small_records_are_served_by_the_queue_however_slow_it_went_with_large_ones() -> None:
    pace, now = Pace(), 100.0
    for _ in range(3):
        for _ in range(200):
            now += pace.asked(now) + 0.008
            pace.sent(now, ANSWER_BYTES, batch(1, ANSWER_BYTES))
        now += 1.0
    assert pace.asked(now) == 0.0
    assert pace.speed < 0.1
    began = now
    for _ in range(700):
        now += pace.asked(now)
        pace.sent(now, 100_000, batch(1000, 100_000))

    assert now - began < 7


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_a_header_without_records_does_no_harm(count: int) -> None:
    pace, now = Pace(), 100.0
    for _ in range(20):
        for _ in range(200):
            pace.sent(now, ANSWER_BYTES, batch(count, 0))
            now += 0.005 + pace.asked(now)
        now += 1.0

    assert pace.speed > 0


def test_a_false_number_of_records_is_not_believed() -> None:
    """Nobody has counted what a batch says that it has."""

    def seconds(records: int) -> float:
        pace, now = Pace(), 100.0
        for _ in range(200):
            pace.sent(now, ANSWER_BYTES, batch(records, 61))
            now += 0.001 + pace.asked(now)
        return now - 100.0

    assert seconds(2**31 - 1) <= seconds(61 // RECORD_BYTES_MIN + 1)


def test_who_reads_at_the_end_of_the_log_never_waits() -> None:
    pace, now = Pace(), 0.0
    for _ in range(10_000):
        now += 0.001
        assert pace.asked(now) == 0.0
        pace.sent(now, 20_000, batch(20, 20_000))


def seconds_for(answers: int, away: Callable[[int], float]) -> float:
    """How long an application has to wait for so many answers, if its library is ``away`` for that
    long after each of them."""
    pace, now = Pace(), 100.0
    for number in range(answers):
        now += pace.asked(now)
        pace.sent(now, ANSWER_BYTES, batch(1000, ANSWER_BYTES))
        now += away(number)
    return now - 100.0


def test_a_library_that_is_back_late_is_on_a_busy_machine() -> None:
    quick = seconds_for(400, lambda _: 0.0004)
    busy = seconds_for(400, lambda number: 0.0016 if number % 8 else 0.0004)

    assert quick < 0.5
    assert busy > 1.2 * (400 * 0.0015)
    assert busy < 4 * quick


def test_a_library_that_is_always_as_late_is_on_a_slow_network() -> None:
    assert seconds_for(400, lambda _: 0.002) == pytest.approx(400 * 0.002, rel=0.05)


def test_small_answers_tell_nothing_of_a_machine() -> None:
    def seconds(away: float) -> float:
        pace, now = Pace(), 100.0
        for _ in range(8000):
            now += pace.asked(now)
            pace.sent(now, 50_000, batch(50, 50_000))
            now += away
        return now - 100.0

    assert seconds(0.00005) == pytest.approx(seconds(0.00002), rel=0.02)
    assert seconds(0.00002) < 8000 * 50 * 1.3e-6


def test_a_busy_machine_that_takes_turns_brings_no_rest() -> None:
    """The application gets little of the processor while the library parses, and all of it while
    the library waits for us."""
    pace, now, queued, fetched = Pace(), 100.0, 0.0, 0
    while fetched < 400_000:
        delay = pace.asked(now)
        now += delay
        queued = max(queued - delay / 0.8e-6, 0.0)
        pace.sent(now, ANSWER_BYTES, batch(1000, ANSWER_BYTES))
        away = 0.0014 if fetched // 1000 % 8 else 0.0005
        now += away
        queued = max(queued - away / 3.5e-6, 0.0) + 1000
        fetched += 1000
        assert queued * 1000 < QUEUE_BYTES, f"a rest after {fetched} records"


def test_other_pauses_tell_nothing() -> None:
    pace, now = Pace(), 0.0
    for pause in (0.5, 5.0, 0.8, 60.0):
        for _ in range(200):
            now += pace.asked(now) + 0.001
            pace.sent(now, ANSWER_BYTES, batch(1000, ANSWER_BYTES))
        now += pause
        pace.asked(now)

    assert pace.speed == 1.0


def test_a_record_that_is_a_whole_answer_is_not_waited_for_longer_than_a_moment() -> None:
    pace = Pace()
    pace.sent(1.0, 1 << 30, batch(1, 1 << 30))

    assert pace.asked(1.0) == pytest.approx(DELAY_SECONDS_MAX)


def test_clients_built_upon_librdkafka_are_known_by_what_they_say() -> None:
    assert rests("librdkafka", "2.16.0")
    assert rests("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")
    assert not rests("apache-kafka-java", "4.1.0")
    assert not rests("riverrun", "1.0")
