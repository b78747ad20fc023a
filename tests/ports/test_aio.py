"""Back-off, yielding, stall credit, rate-limited logging and owned tasks, without a real clock."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator

import pytest

from riverrun.ports.aio import (
    LOG_SUBJECTS_MAX,
    YIELD_SECONDS,
    Backoff,
    LogLimiter,
    OwnedTasks,
    StallCredit,
    Yielder,
)


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class SeededRandomness:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128))

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


# Backoff


def test_delays_double_up_to_the_limit() -> None:
    backoff = Backoff(first_seconds=0.1, max_seconds=1.0)
    assert [backoff.exact(n) for n in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.exact(10_000) == 1.0


def test_jitter_stays_within_its_range_and_repeats_with_the_seed() -> None:
    backoff = Backoff(first_seconds=1.0, max_seconds=1.0, jitter_min=0.5, jitter_max=1.0)
    one, two = SeededRandomness(7), SeededRandomness(7)
    drawn = [backoff.jittered(n, one) for n in range(1, 50)]
    assert all(0.5 <= delay <= 1.0 for delay in drawn)
    assert len(set(drawn)) > 40
    assert drawn == [backoff.jittered(n, two) for n in range(1, 50)]


def test_backoff_needs_a_failure() -> None:
    with pytest.raises(AssertionError):
        Backoff(first_seconds=0.1, max_seconds=1.0).exact(0)


# Yielder


async def iterations_during(work: asyncio.Task[None]) -> int:
    """How often the event loop ran other tasks until the work was done."""
    count = 0
    while not work.done():
        count += 1
        await asyncio.sleep(0)
    return count


def test_yielder_does_not_yield_within_its_time_budget() -> None:
    async def scenario() -> None:
        yielder = Yielder(ManualClock())

        async def work() -> None:
            for _ in range(100):
                await yielder.step()

        assert await iterations_during(asyncio.create_task(work())) == 1

    asyncio.run(scenario())


def test_yielder_yields_when_its_time_budget_is_spent() -> None:
    clock = ManualClock()

    async def scenario() -> None:
        yielder = Yielder(clock)

        async def work() -> None:
            for _ in range(10):
                clock.seconds += YIELD_SECONDS / 2 + 0.0001
                await yielder.step()

        assert await iterations_during(asyncio.create_task(work())) == 1 + 5

    asyncio.run(scenario())


def test_yielder_yields_after_a_number_of_steps_though_time_stands_still() -> None:
    def steps() -> Iterator[None]:
        for _ in range(10):
            yield

    async def scenario() -> None:
        yielder = Yielder(ManualClock(), steps_max=2)
        assert await iterations_during(asyncio.create_task(yielder.run(steps()))) == 1 + 5

    asyncio.run(scenario())


# StallCredit


def test_no_credit_before_a_deadline_is_expected() -> None:
    assert StallCredit(tolerance_seconds=0.25).take(1e9) == 0.0


def test_lateness_within_the_tolerance_gives_no_credit() -> None:
    credit = StallCredit(tolerance_seconds=0.25, grace_seconds=0.05)
    credit.expect(10.0)
    assert credit.take(9.0) == credit.take(10.0) == credit.take(10.25) == 0.0


def test_a_stall_is_credited_with_the_grace() -> None:
    credit = StallCredit(tolerance_seconds=0.25, grace_seconds=0.05)
    credit.expect(10.0)
    assert credit.take(13.0) == pytest.approx(3.05)
    credit.expect(14.0)
    assert credit.take(14.1) == 0.0


# LogLimiter


def test_one_event_is_admitted_for_each_subject_and_interval() -> None:
    clock = ManualClock()
    limiter = LogLimiter(clock, interval_seconds=10.0)
    assert limiter.admit("a") == 0
    assert limiter.admit("b") == 0
    assert [limiter.admit("a") for _ in range(3)] == [None] * 3
    clock.seconds += 10.0
    assert limiter.admit("a") == 3
    assert limiter.admit("b") == 0


def test_an_event_after_a_reset_is_admitted_at_once() -> None:
    limiter = LogLimiter(ManualClock(), interval_seconds=10.0)
    assert limiter.admit("a") == 0
    limiter.reset("a")
    assert limiter.admit("a") == 0
    limiter.reset("unknown")


def test_the_number_of_subjects_is_bounded() -> None:
    clock = ManualClock()
    limiter = LogLimiter(clock, interval_seconds=10.0)
    for number in range(LOG_SUBJECTS_MAX):
        assert limiter.admit(str(number)) == 0
    assert limiter.admit("one too many") is None
    clock.seconds += 10.0
    assert limiter.admit("one too many") == 0


# OwnedTasks


class Failures:
    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException]] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.seen.append((name, error))


def test_close_cancels_tasks_and_waits_for_their_cleanup() -> None:
    cleaned: list[int] = []
    failures = Failures()

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    async def scenario() -> None:
        tasks = OwnedTasks(failures)
        for number in range(3):
            tasks.start(work(number))
        await asyncio.sleep(0)
        assert len(tasks) == 3
        await tasks.close()
        assert len(tasks) == 0

    asyncio.run(scenario())
    assert cleaned == [0, 1, 2] and not failures.seen


def test_a_failed_task_is_reported_with_its_name() -> None:
    failures = Failures()
    error = OSError("disk")

    async def fail() -> None:
        raise error

    async def succeed() -> None:
        pass

    async def scenario() -> None:
        tasks = OwnedTasks(failures)
        done = [tasks.start(succeed()), tasks.start(fail(), name="sync")]
        await asyncio.wait(done)
        await asyncio.sleep(0)
        assert len(tasks) == 0

    asyncio.run(scenario())
    assert failures.seen == [("sync", error)]


def test_a_failure_during_close_is_reported() -> None:
    failures = Failures()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cleanup")

    async def scenario() -> None:
        tasks = OwnedTasks(failures)
        tasks.start(work(), name="work")
        await asyncio.sleep(0)
        await tasks.close()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert [name for name, _ in failures.seen] == ["work"]


def test_no_task_starts_after_close() -> None:
    async def work() -> None:
        pass

    async def scenario() -> None:
        tasks = OwnedTasks(Failures())
        await tasks.close()
        late = work()
        with pytest.raises(AssertionError):
            tasks.start(late)
        late.close()

    asyncio.run(scenario())
