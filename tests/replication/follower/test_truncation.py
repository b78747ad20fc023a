"""A follower's history is its leader's: what differs is cut by epochs, and nothing else ever is."""

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

from .story import FIRST, ME, SECOND, Story, same, tell


def write(log: Log, *epochs: int) -> None:
    """A batch of each epoch."""
    for epoch in epochs:
        log.append_as_leader(
            batch(b"%d at %d" % (epoch, log.end_offset)),
            leader_epoch=LeaderEpoch(epoch),
            now_ms=NOW_MS,
        )


def test_a_tail_that_the_new_leader_lacks_is_cut_and_replaced() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0, 0, 0, 0)
        led = story.leads(story.first, epoch=1, copied=replica.log, end=3)
        led.append(b"new")
        story.follow(replica, epoch=1)
        await story.until(lambda: replica.log.latest_epoch == 1)
        assert same(led, replica.log)
        assert replica.log.end_offset == 4
        assert story.first.lookups == 0

    tell(telling)


@pytest.mark.parametrize(("end", "told"), [(5, []), (3, [(3, 5)])])
def test_only_a_cut_that_took_something_is_told(end: int, told: list[tuple[int, int]]) -> None:
    """Who led for a moment and wrote nothing has an epoch to forget, and no record to lose."""

    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0, 0, 0, 0)
        led = story.leads(story.first, epoch=2, copied=replica.log, end=end)
        replica.log.epochs.begin(1, replica.log.end_offset)
        story.follow(replica, epoch=2)
        await story.until(lambda: replica.log.latest_epoch == 0)
        led.append(b"new")
        story.first.wake()
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        cuts = story.metrics.counter("riverrun_replica_truncations_total", "")
        assert cuts.value == len(told)

    with capture_logs() as lines:
        tell(telling)
    assert [
        (row["end"], row["was"]) for row in lines if row["event"] == "replica truncated"
    ] == told


def test_the_common_prefix_is_found_across_several_epochs() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0, 1, 1, 4, 4, 6)
        led = story.leads(story.first, epoch=2, copied=replica.log, end=3)
        write(led.log, 2, 2, 3, 5, 5)
        led.epoch = 7
        led.append(b"new")
        story.follow(replica, epoch=7)
        await story.until(lambda: replica.log.latest_epoch == 7)
        assert same(led, replica.log)

    tell(telling)


def test_an_epoch_in_which_we_led_and_wrote_nothing_does_not_stand_in_the_way() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0)
        led = story.leads(story.first, epoch=2, copied=replica.log)
        story.follow(replica, leader=ME, epoch=1)
        assert replica.log.latest_epoch == 1
        led.append(b"new")
        story.follow(replica, epoch=2)
        await story.until(lambda: replica.log.end_offset == 3)
        assert same(led, replica.log)

    tell(telling)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_any_two_histories_end_up_equal(seed: int) -> None:
    """Both grew from a common prefix, each in epochs of its own."""
    rnd = random.Random(seed)

    async def telling(story: Story) -> None:
        replica = story.replica()
        own, others = rnd.sample(range(1, 20), 4), rnd.sample(range(1, 20), 4)
        common = sorted(rnd.choices(range(3), k=rnd.randrange(6)))
        write(replica.log, *common)
        floor = replica.log.latest_epoch
        led = story.leads(story.first, epoch=max(floor, 0), copied=replica.log)
        write(replica.log, *sorted(e for e in own if e > floor and e not in others))
        write(led.log, *sorted(e for e in others if e > floor))
        led.epoch = 30
        led.log.begin_epoch(LeaderEpoch(30))
        led.append(b"end")
        story.follow(replica, epoch=30)
        await story.until(lambda: replica.log.latest_epoch == 30)
        assert same(led, replica.log)

    tell(telling)


def test_what_was_committed_is_never_cut_for_being_above_our_high_watermark() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0, 0)
        assert replica.log.high_watermark == 0
        story.leads(story.first, epoch=1, copied=replica.log)
        story.follow(replica, epoch=1)
        await story.until(lambda: len(story.first.calls) == 2)
        assert story.first.calls[0].partitions[0].offset == 3
        assert replica.log.end_offset == 3

    tell(telling)


def test_a_leader_that_begins_later_makes_us_begin_anew_there() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        write(replica.log, 0, 0)
        for _ in range(10):
            led.append(b"value")
        led.commit()
        led.log.delete_records_before(7)
        story.follow(replica)
        await story.caught_up(led, replica)
        assert (replica.log.start_offset, replica.log.end_offset) == (7, 10)
        assert same(led, replica.log)
        assert story.first.lookups == 2

    tell(telling)


def test_a_leader_that_ends_before_our_log_begins_is_copied_whole() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first, epoch=5), story.replica()
        replica.log.truncate_fully_and_start_at(100)
        write(replica.log, 0, 0)
        led.append(b"a")
        story.follow(replica, epoch=5)
        await story.caught_up(led, replica)
        assert (replica.log.start_offset, replica.log.end_offset) == (0, 1)
        assert same(led, replica.log)

    tell(telling)


def test_an_empty_log_beyond_the_leaders_end_is_begun_anew() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        replica.log.truncate_fully_and_start_at(100)
        led.append(b"a")
        story.follow(replica)
        await story.caught_up(led, replica)
        assert replica.log.start_offset == 0

    tell(telling)


def test_a_cut_waits_for_the_sync_that_runs_and_none_of_it_counts() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0, 0, 0)
        led = story.leads(story.first, epoch=1, copied=replica.log, end=2)
        led.append(b"new")
        story.loop.is_holding = True
        sync = asyncio.create_task(story.runner.flushed(replica.log, 4))
        await asyncio.sleep(0)
        story.follow(replica, epoch=1)
        await story.until(lambda: story.following().state is FollowState.TRUNCATING)
        await story.passes(1)
        assert replica.log.end_offset == 4, "not while a thread syncs"
        story.loop.is_holding = False
        story.loop.release()
        await story.until(lambda: replica.log.latest_epoch == 1)
        assert same(led, replica.log)
        await asyncio.gather(sync, return_exceptions=True)

    tell(telling)


def test_who_becomes_the_leader_while_a_cut_waits_keeps_his_log() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        write(replica.log, 0, 0, 0, 0)
        story.leads(story.first, epoch=1, copied=replica.log, end=2)
        story.loop.is_holding = True
        sync = asyncio.create_task(story.runner.flushed(replica.log, 4))
        await asyncio.sleep(0)
        story.follow(replica, epoch=1)
        await story.until(lambda: story.following().state is FollowState.TRUNCATING)
        story.follow(replica, leader=ME, epoch=2)
        story.loop.is_holding = False
        story.loop.release()
        await story.passes(1)
        assert replica.log.end_offset == 4
        await asyncio.gather(sync, return_exceptions=True)

    tell(telling)


def test_a_leader_that_only_repeats_itself_is_not_asked_all_the_time() -> None:
    async def telling(story: Story) -> None:
        story.leads(story.first)
        replica = story.replica()
        story.first.changes = [lambda r: r._replace(diverging=(0, 5))] * 1000
        story.follow(replica)
        await story.passes(30)
        assert replica.log.end_offset == 0
        assert len(story.first.calls) < 150

    tell(telling)


def test_a_change_of_leader_during_a_story_of_many_appends_keeps_logs_equal() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        for round_ in range(8):
            for _ in range(5):
                led.append(b"value", producer=3, sequence=led.log.end_offset)
                story.first.wake()
                story.second.wake()
            if round_ % 2:
                await story.caught_up(led, replica)
            at = story.second if led in story.first.led.values() else story.first
            end = led.log.end_offset - round_ % 3
            led = story.leads(at, epoch=round_ + 1, copied=led.log, end=end)
            leader = FIRST if at is story.first else SECOND
            story.follow(replica, leader=leader, epoch=round_ + 1)
        led.append(b"end", producer=3, sequence=led.log.end_offset)
        story.first.wake()
        story.second.wake()
        await story.until(lambda: replica.log.latest_epoch == 8)
        assert same(led, replica.log)

    tell(telling, LogSettings(segment_bytes=300))


def test_a_damaged_replica_is_fetched_again_but_not_while_it_counts_as_in_sync() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for number in range(10):
            led.append(b"%d" % number)
        led.commit()
        story.follow(replica)
        await story.caught_up(led, replica)
        story.machine.find("00000000000000000000.log")[70] ^= 1
        story.follow(replica, isr=(FIRST, ME))
        assert not story.fetchers.refetch(replica)
        story.follow(replica, isr=(FIRST,))
        before = story.loop.time()
        assert story.fetchers.refetch(replica)
        cuts = story.metrics.counter("riverrun_replica_truncations_total", "")
        await story.until(lambda: cuts.value == 1)
        await story.caught_up(led, replica)
        assert story.loop.time() - before < 0.1, "it does not wait for a held request"
        assert same(led, replica.log)

    tell(telling)


def test_a_damaged_replica_keeps_what_is_sound_of_it() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for number in range(6):
            led.append(b"value %d" % number)
        led.commit()
        story.follow(replica)
        await story.caught_up(led, replica)
        assert story.fetchers.lag(replica) == 0
        calls = len(story.first.calls)
        replica.log.report_damage("rot", 3)
        assert story.fetchers.refetch(replica)
        assert story.fetchers.lag(replica) is None, "it is to be cut"
        await story.until(lambda: not replica.log.is_corrupt)
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        asked = [call.partitions[0].offset for call in story.first.calls[calls:] if call.partitions]
        assert asked[0] == 3, "what lies before the damage is not fetched again"

    tell(telling)


@pytest.mark.parametrize(
    ("start", "end", "cut"),
    [
        (0, 3, Truncation(3)),
        (0, 5, None),
        (2, 9, None),
        (7, 9, Truncation(7, 7)),
        (0, 0, Truncation(0, 0)),
    ],
)
def test_out_of_range_is_judged_by_where_the_leaders_log_lies(
    start: int, end: int, cut: Truncation | None
) -> None:
    log = Machine().load(LogSettings())[1]
    write(log, 0, 0, 0, 0, 0)
    assert truncation_out_of_range(log, start, end, 0) == cut


@pytest.mark.parametrize(
    ("end", "cut"), [(9, Truncation(3)), (5, Truncation(3)), (2, Truncation(2))]
)
def test_epochs_that_nobody_gave_are_cut_off(end: int, cut: Truncation) -> None:
    """A bit flipped where no checksum looks: the leader knows of no such epoch, and never will."""
    log = Machine().load(LogSettings())[1]
    write(log, 0, 1, 1, 65537, 65537)
    assert truncation_out_of_range(log, 0, end, 2) == cut


@pytest.mark.parametrize(
    ("epoch", "end", "cut"),
    [
        (1, 3, 3),
        (1, 9, 4),
        (3, 9, 4),  # an epoch that we do not know: what we had before it ends at 4
        (4, 5, 5),
        (0, 1, 1),
    ],
)
def test_the_place_to_cut_is_where_the_epoch_ends_for_the_first_of_both(
    epoch: int, end: int, cut: int
) -> None:
    log = Machine().load(LogSettings())[1]
    write(log, 0, 0, 1, 1, 4, 4)
    assert truncation_at_divergence(log, epoch, end, 0) == Truncation(cut)
