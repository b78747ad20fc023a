"""A follower truncates diverging records by leader epochs, and nothing else."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from riverrun.model.ids import LeaderEpoch
from riverrun.replication.follower.followed_partition import FollowState
from riverrun.replication.follower.truncation import (
    Truncation,
    truncation_at_divergence,
    truncation_out_of_range,
)
from riverrun.storage.log import Log
from riverrun.storage.settings import LogSettings
from tests.storage.machines import NOW_MS, Machine, batch

from .scenario import FIRST, ME, SECOND, Scenario, run, same


def write(log: Log, *epochs: int) -> None:
    """Append one batch for each epoch."""
    for epoch in epochs:
        log.append_as_leader(
            batch(b"%d at %d" % (epoch, log.end_offset)),
            leader_epoch=LeaderEpoch(epoch),
            now_ms=NOW_MS,
        )


def test_records_that_the_new_leader_lacks_are_truncated_and_replaced() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0, 0, 0, 0)
        led = scenario.leads(scenario.first, epoch=1, copied=replica.log, end=3)
        led.append(b"new")
        scenario.follow(replica, epoch=1)
        await scenario.until(lambda: replica.log.latest_epoch == 1)
        assert same(led, replica.log)
        assert replica.log.end_offset == 4
        assert scenario.first.lookups == 0

    run(steps)


@pytest.mark.parametrize(("end", "logged"), [(5, []), (3, [(3, 5)])])
def test_only_a_truncation_of_records_is_logged(end: int, logged: list[tuple[int, int]]) -> None:
    """A node that led without writing removes an epoch, but loses no record."""

    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0, 0, 0, 0)
        led = scenario.leads(scenario.first, epoch=2, copied=replica.log, end=end)
        replica.log.epochs.begin(1, replica.log.end_offset)
        scenario.follow(replica, epoch=2)
        await scenario.until(lambda: replica.log.latest_epoch == 0)
        led.append(b"new")
        scenario.first.wake()
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        truncations = scenario.metrics.counter("riverrun_replica_truncations_total", "")
        assert truncations.value == len(logged)

    with capture_logs() as lines:
        run(steps)
    assert [
        (row["end"], row["was"]) for row in lines if row["event"] == "replica truncated"
    ] == logged


def test_common_prefix_is_found_across_several_epochs() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0, 1, 1, 4, 4, 6)
        led = scenario.leads(scenario.first, epoch=2, copied=replica.log, end=3)
        write(led.log, 2, 2, 3, 5, 5)
        led.epoch = 7
        led.append(b"new")
        scenario.follow(replica, epoch=7)
        await scenario.until(lambda: replica.log.latest_epoch == 7)
        assert same(led, replica.log)

    run(steps)


def test_own_epoch_without_records_is_removed() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0)
        led = scenario.leads(scenario.first, epoch=2, copied=replica.log)
        scenario.follow(replica, leader=ME, epoch=1)
        assert replica.log.latest_epoch == 1
        led.append(b"new")
        scenario.follow(replica, epoch=2)
        await scenario.until(lambda: replica.log.end_offset == 3)
        assert same(led, replica.log)

    run(steps)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_diverging_logs_converge(seed: int) -> None:
    """Both logs grew from a common prefix, each with its own epochs."""
    rnd = random.Random(seed)

    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        own, others = rnd.sample(range(1, 20), 4), rnd.sample(range(1, 20), 4)
        common = sorted(rnd.choices(range(3), k=rnd.randrange(6)))
        write(replica.log, *common)
        floor = replica.log.latest_epoch
        led = scenario.leads(scenario.first, epoch=max(floor, 0), copied=replica.log)
        write(replica.log, *sorted(e for e in own if e > floor and e not in others))
        write(led.log, *sorted(e for e in others if e > floor))
        led.epoch = 30
        led.log.begin_epoch(LeaderEpoch(30))
        led.append(b"end")
        scenario.follow(replica, epoch=30)
        await scenario.until(lambda: replica.log.latest_epoch == 30)
        assert same(led, replica.log)

    run(steps)


def test_records_above_our_high_watermark_are_not_truncated() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0, 0)
        assert replica.log.high_watermark == 0
        scenario.leads(scenario.first, epoch=1, copied=replica.log)
        scenario.follow(replica, epoch=1)
        await scenario.until(lambda: len(scenario.first.calls) == 2)
        assert scenario.first.calls[0].partitions[0].offset == 3
        assert replica.log.end_offset == 3

    run(steps)


def test_log_restarts_at_the_leaders_start_if_that_is_above_our_end() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        write(replica.log, 0, 0)
        for _ in range(10):
            led.append(b"value")
        led.commit()
        led.log.delete_records_before(7)
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert (replica.log.start_offset, replica.log.end_offset) == (7, 10)
        assert same(led, replica.log)
        assert scenario.first.lookups == 2

    run(steps)


def test_leader_that_ends_before_our_log_starts_is_copied_completely() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first, epoch=5), scenario.replica()
        replica.log.truncate_fully_and_start_at(100)
        write(replica.log, 0, 0)
        led.append(b"a")
        scenario.follow(replica, epoch=5)
        await scenario.caught_up(led, replica)
        assert (replica.log.start_offset, replica.log.end_offset) == (0, 1)
        assert same(led, replica.log)

    run(steps)


def test_empty_log_beyond_the_leaders_end_is_restarted() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        replica.log.truncate_fully_and_start_at(100)
        led.append(b"a")
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert replica.log.start_offset == 0

    run(steps)


def test_truncation_waits_for_a_running_flush() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0, 0, 0)
        led = scenario.leads(scenario.first, epoch=1, copied=replica.log, end=2)
        led.append(b"new")
        scenario.loop.is_holding = True
        flush = asyncio.create_task(scenario.runner.flushed(replica.log, 4))
        await asyncio.sleep(0)
        scenario.follow(replica, epoch=1)
        await scenario.until(lambda: scenario.following().state is FollowState.TRUNCATING)
        await scenario.passes(1)
        assert replica.log.end_offset == 4, "not during a flush"
        scenario.loop.is_holding = False
        scenario.loop.release()
        await scenario.until(lambda: replica.log.latest_epoch == 1)
        assert same(led, replica.log)
        await asyncio.gather(flush, return_exceptions=True)

    run(steps)


def test_node_that_becomes_leader_cancels_a_waiting_truncation() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        write(replica.log, 0, 0, 0, 0)
        scenario.leads(scenario.first, epoch=1, copied=replica.log, end=2)
        scenario.loop.is_holding = True
        flush = asyncio.create_task(scenario.runner.flushed(replica.log, 4))
        await asyncio.sleep(0)
        scenario.follow(replica, epoch=1)
        await scenario.until(lambda: scenario.following().state is FollowState.TRUNCATING)
        scenario.follow(replica, leader=ME, epoch=2)
        scenario.loop.is_holding = False
        scenario.loop.release()
        await scenario.passes(1)
        assert replica.log.end_offset == 4
        await asyncio.gather(flush, return_exceptions=True)

    run(steps)


def test_repeated_divergence_without_truncation_backs_off() -> None:
    async def steps(scenario: Scenario) -> None:
        scenario.leads(scenario.first)
        replica = scenario.replica()
        scenario.first.changes = [lambda r: r._replace(diverging=(0, 5))] * 1000
        scenario.follow(replica)
        await scenario.passes(30)
        assert replica.log.end_offset == 0
        assert len(scenario.first.calls) < 150

    run(steps)


def test_logs_stay_equal_across_many_leader_changes() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        for round_ in range(8):
            for _ in range(5):
                led.append(b"value", producer=3, sequence=led.log.end_offset)
                scenario.first.wake()
                scenario.second.wake()
            if round_ % 2:
                await scenario.caught_up(led, replica)
            at = scenario.second if led in scenario.first.led.values() else scenario.first
            end = led.log.end_offset - round_ % 3
            led = scenario.leads(at, epoch=round_ + 1, copied=led.log, end=end)
            leader = FIRST if at is scenario.first else SECOND
            scenario.follow(replica, leader=leader, epoch=round_ + 1)
        led.append(b"end", producer=3, sequence=led.log.end_offset)
        scenario.first.wake()
        scenario.second.wake()
        await scenario.until(lambda: replica.log.latest_epoch == 8)
        assert same(led, replica.log)

    run(steps, LogSettings(segment_bytes=300))


def test_damaged_replica_is_fetched_again_only_out_of_sync() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for number in range(10):
            led.append(b"%d" % number)
        led.commit()
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        scenario.machine.find("00000000000000000000.log")[70] ^= 1
        scenario.follow(replica, isr=(FIRST, ME))
        assert not scenario.fetchers.refetch(replica)
        scenario.follow(replica, isr=(FIRST,))
        before = scenario.loop.time()
        assert scenario.fetchers.refetch(replica)
        truncations = scenario.metrics.counter("riverrun_replica_truncations_total", "")
        await scenario.until(lambda: truncations.value == 1)
        await scenario.caught_up(led, replica)
        assert scenario.loop.time() - before < 0.1, "it does not wait for the long poll"
        assert same(led, replica.log)

    run(steps)


def test_damaged_replica_keeps_its_intact_records() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for number in range(6):
            led.append(b"value %d" % number)
        led.commit()
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert scenario.fetchers.lag(replica) == 0
        calls = len(scenario.first.calls)
        replica.log.report_damage("bit flip", 3)
        assert scenario.fetchers.refetch(replica)
        assert scenario.fetchers.lag(replica) is None, "a truncation is pending"
        await scenario.until(lambda: not replica.log.is_corrupt)
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        offsets = [
            call.partitions[0].offset for call in scenario.first.calls[calls:] if call.partitions
        ]
        assert offsets[0] == 3, "records before the damage are not fetched again"

    run(steps)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 3, Truncation(3)),
        (0, 5, None),
        (2, 9, None),
        (7, 9, Truncation(7, 7)),
        (0, 0, Truncation(0, 0)),
    ],
)
def test_truncation_out_of_range_depends_on_the_leaders_log_range(
    start: int, end: int, expected: Truncation | None
) -> None:
    log = Machine().load(LogSettings())[1]
    write(log, 0, 0, 0, 0, 0)
    assert truncation_out_of_range(log, start, end, 0) == expected


@pytest.mark.parametrize(
    ("end", "expected"), [(9, Truncation(3)), (5, Truncation(3)), (2, Truncation(2))]
)
def test_epochs_above_the_leaders_are_truncated(end: int, expected: Truncation) -> None:
    """A bit flipped in a field without a checksum: no leader ever had this epoch."""
    log = Machine().load(LogSettings())[1]
    write(log, 0, 1, 1, 65537, 65537)
    assert truncation_out_of_range(log, 0, end, 2) == expected


@pytest.mark.parametrize(
    ("epoch", "end", "expected"),
    [
        (1, 3, 3),
        (1, 9, 4),
        (3, 9, 4),  # We lack epoch 3; our last epoch below it ends at 4.
        (4, 5, 5),
        (0, 1, 1),
    ],
)
def test_truncation_is_at_the_smaller_end_of_the_epoch(epoch: int, end: int, expected: int) -> None:
    log = Machine().load(LogSettings())[1]
    write(log, 0, 0, 1, 1, 4, 4)
    assert truncation_at_divergence(log, epoch, end, 0) == Truncation(expected)
