"""A follower copies its leader's log, promptly and whole, and says so by what it asks for next."""

from __future__ import annotations

from uuid import UUID

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.replication.follower.followed_partition import FollowState
from riverrun.storage.settings import LogSettings
from tests.storage.machines import batch, read_all

from .story import FIRST, ME, SECOND, TOPIC, Story, same, tell


def test_a_new_replica_catches_up_from_zero() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for number in range(300):
            led.append(b"%d" % number, bytes(5000))
        led.commit()
        story.follow(replica)
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        await story.until(lambda: replica.log.high_watermark == 600)

    tell(telling)


def test_what_is_appended_is_here_within_milliseconds_and_acknowledged_at_once() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 2)
        for number in range(5):
            before, now = len(story.first.calls), story.loop.time()
            led.append(b"value")
            story.first.wake()
            await story.until(lambda before=before: len(story.first.calls) > before)
            assert story.loop.time() - now < 0.005
            (told,) = story.first.calls[-1].partitions
            assert (told.offset, replica.log.end_offset) == (number + 1, number + 1)

    tell(telling)


def test_every_request_bears_node_epoch_and_limits_and_later_ones_only_what_changed() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first, epoch=4), story.replica()
        led.append(b"a")
        story.follow(replica, epoch=4)
        await story.until(lambda: len(story.first.calls) == 3)
        first, second, third = story.first.calls
        assert (first.replica_id, first.replica_epoch) == (ME, 7)
        assert (first.max_wait_ms, first.min_bytes, first.max_bytes) == (500, 1, 10 << 20)
        assert (first.session_id, first.session_epoch, first.cluster_id) == (0, 0, "cluster")
        (wanted,) = first.partitions
        assert (wanted.offset, wanted.leader_epoch, wanted.last_fetched_epoch) == (0, 4, -1)
        assert (wanted.max_bytes, wanted.log_start_offset) == (1 << 20, 0)
        assert second.session_epoch == 1
        assert [(p.offset, p.last_fetched_epoch) for p in second.partitions] == [(1, 4)]
        assert third.session_epoch == 2
        assert third.partitions == []

    tell(telling)


def test_nothing_is_asked_before_the_node_is_registered() -> None:
    async def telling(story: Story) -> None:
        story.epoch = -1
        led, replica = story.leads(story.first), story.replica()
        led.append(b"a")
        story.follow(replica)
        await story.passes(1)
        assert story.loop.connects == []
        story.epoch = 3
        await story.caught_up(led, replica)
        assert story.first.calls[0].replica_epoch == 3

    tell(telling)


def test_many_partitions_share_a_session_and_only_those_with_news_are_spoken_of() -> None:
    async def telling(story: Story) -> None:
        count = 1000
        led = [story.leads(story.first, index) for index in range(count)]
        replicas = [story.replica(index) for index in range(count)]
        story.follow(*replicas)
        await story.until(lambda: len(story.first.calls) >= 2)
        assert len(story.first.calls[0].partitions) == count
        for index in (3, 500, 999):
            led[index].append(b"value")
        before = len(story.first.calls)
        story.first.wake()
        await story.until(lambda: len(story.first.calls) > before)
        told = story.first.calls[before]
        assert [(p.partition, p.offset) for p in told.partitions] == [(3, 1), (500, 1), (999, 1)]
        assert len(story.loop.connects) == 1

    tell(telling)


def test_a_large_backlog_of_many_partitions_comes_by_and_by_and_everybody_gets_a_share() -> None:
    async def telling(story: Story) -> None:
        story.first.response_bytes_max = 30_000
        led = [story.leads(story.first, index) for index in range(5)]
        replicas = [story.replica(index) for index in range(5)]
        for each in led:
            for _ in range(20):
                each.append(bytes(9000))
        story.follow(*replicas)
        for one, other in zip(led, replicas, strict=True):
            await story.caught_up(one, other)
            assert same(one, other.log)

    tell(telling)


@pytest.mark.parametrize("fetchers", [1, 3])
def test_partitions_are_shared_among_fetchers(fetchers: int) -> None:
    async def telling(story: Story) -> None:
        led = [story.leads(story.first, index) for index in range(20)]
        replicas = [story.replica(index) for index in range(20)]
        for each in led:
            each.append(b"value")
        story.follow(*replicas)
        for one, other in zip(led, replicas, strict=True):
            await story.caught_up(one, other)
        assert len(story.loop.connects) == fetchers

    tell(telling, fetchers=fetchers)


def test_the_replica_of_a_compacted_log_has_its_gaps_even_wide_ones() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        led.append(b"a", b"b")
        for gap in (100, 10_000, 5_000_000_000):
            data = batch(b"c")
            data[0:8] = (led.log.end_offset + gap).to_bytes(8, "big")
            data[12:16] = bytes(4)
            led.log.append_as_follower(data)
        story.follow(replica)
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        assert replica.log.end_offset > 5_000_000_000

    tell(telling)


def test_a_log_that_begins_behind_a_wide_gap_is_recovered_with_it() -> None:
    story = Story.__new__(Story)

    async def telling(told: Story) -> None:
        nonlocal story
        story = told
        replica = told.replica()
        data = batch(b"far")
        data[0:8] = (6_000_000_000).to_bytes(8, "big")
        data[12:16] = bytes(4)
        replica.log.append_as_follower(data)
        await told.runner.flushed(replica.log, replica.log.end_offset)

    tell(telling)
    story.machine.lose_power()
    _, log = story.machine.load(LogSettings())
    log.high_watermark = log.end_offset
    assert read_all(log)[-1] == (6_000_000_000, b"far")


def test_epochs_and_producers_are_kept_in_step() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for epoch, producer in ((0, 5), (3, 6), (4, 5)):
            led.epoch = epoch
            for number in range(3):
                sequence = number + (3 if (epoch, producer) == (4, 5) else 0)
                led.append(b"value", producer=producer, sequence=sequence)
        story.follow(replica, epoch=4)
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        assert replica.log.epochs.entries == [(0, 0), (3, 3), (4, 6)]
        assert len(replica.log.producers.known[5].batches) == 5

    tell(telling)


def test_the_beginning_of_the_log_follows_the_leader() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for _ in range(10):
            led.append(b"value")
        led.commit()
        story.follow(replica)
        await story.until(lambda: replica.log.high_watermark == 10)
        led.log.delete_records_before(6)
        await story.until(lambda: replica.log.start_offset == 6)
        await story.until(lambda: bool(story.first.calls[-1].partitions))
        assert story.first.calls[-1].partitions[0].log_start_offset == 6

    tell(telling)


def test_the_high_watermark_is_the_leaders_as_far_as_our_log_reaches() -> None:
    async def telling(story: Story) -> None:
        story.first.response_bytes_max = 1
        led, replica = story.leads(story.first), story.replica()
        for _ in range(10):
            led.append(bytes(100))
        led.commit()
        story.follow(replica)
        for end in range(1, 11):
            await story.until(lambda end=end: replica.log.end_offset >= end)
            assert replica.log.high_watermark == replica.log.end_offset
        led.append(b"not committed")
        story.first.wake()
        await story.caught_up(led, replica)
        assert replica.log.high_watermark == 10
        assert story.following().lag == 0

    tell(telling)


def test_a_damaged_batch_is_refused_and_fetched_again() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for _ in range(4):
            led.append(b"value")

        def damage(result):  # type: ignore[no-untyped-def]
            data = bytearray(result.records)
            data[-3] ^= 1
            return result._replace(records=bytes(data))

        story.first.changes = [damage, damage]
        story.follow(replica)
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        counter = story.metrics.counter("riverrun_replica_fetch_corrupt_total", "")
        assert counter.value == 2

    tell(telling)


def test_batches_of_a_later_epoch_than_the_leaders_are_not_taken() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        led.append(b"a")
        data = batch(b"b")
        data[0:8], data[12:16] = (1).to_bytes(8, "big"), (9).to_bytes(4, "big")
        led.log.append_as_follower(data)
        story.follow(replica)
        await story.until(lambda: story.following().state is FollowState.DELAYED)
        assert replica.log.end_offset == 1

    tell(telling)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH],
)
def test_a_lost_session_is_begun_anew_at_once(code: ErrorCode) -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 2)
        old = story.first.calls[1].session_id
        story.first.errors = [code]
        led.append(b"a")
        story.first.wake()
        await story.caught_up(led, replica)
        await story.until(lambda: story.first.calls[-1].session_epoch == 1)
        anew = next(call for call in story.first.calls[2:] if call.session_epoch == 0)
        is_gone = code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert anew.session_id == (0 if is_gone else old), "the leader may drop the old one"
        assert [p.offset for p in anew.partitions] == [1]
        assert len(story.loop.connects) == 1

    tell(telling)


def test_a_leader_without_sessions_is_told_everything_every_time() -> None:
    async def telling(story: Story) -> None:
        story.first.keeps_sessions = False
        led = [story.leads(story.first, index) for index in range(2)]
        replicas = [story.replica(index) for index in range(2)]
        story.follow(*replicas)
        for _ in range(3):
            led[0].append(b"value")
            story.first.wake()
            await story.caught_up(led[0], replicas[0])
        assert all(len(call.partitions) == 2 for call in story.first.calls)

    tell(telling)


def test_a_topic_that_is_deleted_and_made_again_is_another_topic() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        led.append(b"old")
        story.follow(replica)
        await story.caught_up(led, replica)
        story.remove(replica)
        again = UUID(int=1 << 80)
        del story.first.led[TOPIC, 0]
        anew, second = story.leads(story.first, topic=again), story.replica(topic=again)
        anew.append(b"new")
        story.follow(second)
        await story.caught_up(anew, second)
        assert same(anew, second.log)
        assert story.first.sessions[story.first.calls[-1].session_id].wanted.keys() == {(again, 0)}

    tell(telling)


def test_a_held_request_does_not_delay_what_is_new() -> None:
    async def telling(story: Story) -> None:
        idle, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 2)
        assert idle.log.end_offset == 0
        led, other = story.leads(story.first, 1), story.replica(1)
        led.append(b"value")
        now = story.loop.time()
        story.follow(other)
        await story.caught_up(led, other)
        assert story.loop.time() - now < 0.02
        third, another = story.leads(story.first, 2), story.replica(2)
        third.append(b"value")
        now = story.loop.time()
        story.follow(another)
        await story.caught_up(third, another)
        assert story.loop.time() - now < 0.1
        assert len(story.loop.connects) == 2, "a second time it waits for a request held shortly"

    tell(telling)


def test_a_dead_leader_is_tried_again_ever_more_rarely_and_its_successor_is_followed_at_once() -> (
    None
):
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        led.append(b"a")
        story.follow(replica)
        await story.caught_up(led, replica)
        story.first.die()
        began = story.loop.time()
        await story.passes(10)
        tries = [when - began for when in story.loop.connects if when > began]
        assert 10 < len(tries) < 22
        assert tries[1] < 0.2
        successor = story.leads(story.second, epoch=1, copied=led.log)
        successor.append(b"b")
        now = story.loop.time()
        story.follow(replica, leader=SECOND, epoch=1)
        await story.caught_up(successor, replica)
        assert story.loop.time() - now < 0.02
        assert same(successor, replica.log)

    tell(telling)


def test_a_leader_that_comes_back_is_found_again() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 2)
        story.first.die()
        await story.until(lambda: len(story.loop.connects) > 3)
        story.first.is_up = True
        led.append(b"a")
        await story.caught_up(led, replica)

    tell(telling)


def test_a_silent_leader_is_left_after_a_time_and_asked_again() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.first.answers_fetches = False
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 1)
        await story.until(lambda: len(story.loop.connects) > 1)
        assert 2 < story.loop.time() < 5
        story.first.answers_fetches = True
        led.append(b"a")
        await story.caught_up(led, replica)

    tell(telling, socket_timeout_ms=2000)


def test_a_leader_that_lost_its_power_and_leads_again_is_asked_anew_at_once() -> None:
    """Nothing breaks the connection to its last life (seed 3064 of three simulated nodes)."""

    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.first.answers_fetches = False
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 1)
        await story.passes(1.5)
        story.first.answers_fetches = True
        again = story.leads(story.first, epoch=1, copied=led.log)
        again.append(b"a")
        now = story.loop.time()
        story.follow(replica, epoch=1)
        await story.caught_up(again, replica)
        assert story.loop.time() - now < 0.02
        assert len(story.loop.connects) == 2

    tell(telling)


def test_one_partition_in_trouble_does_not_hold_up_the_others() -> None:
    async def telling(story: Story) -> None:
        led = [story.leads(story.first, index) for index in range(2)]
        replicas = [story.replica(index) for index in range(2)]
        story.first.refusals[TOPIC, 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        story.follow(*replicas)
        for number in range(50):
            led[1].append(b"value")
            story.first.wake()
            await story.until(lambda n=number: replicas[1].log.end_offset == n + 1)
        before = len(story.first.calls)
        await story.passes(20)
        assert len(story.first.calls) - before < 100, "it is asked for ever more rarely"
        del story.first.refusals[TOPIC, 0]
        led[0].append(b"value")
        now = story.loop.time()
        await story.caught_up(led[0], replicas[0])
        assert story.loop.time() - now < 1.5

    tell(telling)


def test_a_leader_that_has_not_heard_of_its_epoch_yet_is_asked_again_soon() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first, epoch=0), story.replica()
        led.append(b"a")
        story.follow(replica, epoch=1)
        await story.until(lambda: story.following().state is FollowState.DELAYED)
        led.epoch = 1
        now = story.loop.time()
        await story.caught_up(led, replica)
        assert story.loop.time() - now < 0.06

    tell(telling)


def test_a_node_that_begins_to_lead_fetches_no_more() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 2)
        story.follow(replica, leader=ME, epoch=1)
        led.append(b"late")
        story.first.wake()
        await story.passes(2)
        assert replica.log.end_offset == 0
        assert list(story.fetchers.followed_partitions()) == []
        assert not story.first.pipes

    tell(telling)


def test_throttled_replicas_keep_to_their_rate_until_they_are_in_sync() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for _ in range(40):
            led.append(bytes(50_000))
        story.follow(replica)
        await story.passes(5)
        assert 100_000 <= replica.log.size_bytes <= 900_000
        story.follow(replica, isr=(FIRST, ME))
        await story.caught_up(led, replica)
        assert story.loop.time() < 8

    tell(
        telling,
        LogSettings(follower_throttled_replicas=("0:1",)),
        throttled_rate=100_000,
        bytes_max=100_000,
    )
