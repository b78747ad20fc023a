"""What a follower's disk does to it: syncs before acknowledging, a full disk, large answers."""

from __future__ import annotations

import errno

from riverrun.replication.follower import plan as planning
from riverrun.replication.follower.followed_partition import FollowState
from riverrun.storage.settings import LogSettings

from .story import Story, same, tell


def test_with_flush_before_ack_nothing_is_acknowledged_before_it_is_synced() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 1)
        for number in range(5):
            story.loop.is_holding = True
            before = len(story.first.calls)
            led.append(b"value")
            story.first.wake()
            await story.caught_up(led, replica)
            await story.passes(2)
            assert len(story.first.calls) == before, "asked for more before the sync"
            story.loop.is_holding = False
            story.loop.release()
            await story.until(lambda before=before: len(story.first.calls) > before)
            assert story.first.calls[before].partitions[0].offset == number + 1
            assert replica.log.flushed_offset == number + 1

    tell(telling, LogSettings(flush_before_ack=True))


def test_what_a_restart_found_is_synced_before_it_is_acknowledged() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        led.append(b"value")
        replica.log.append_as_follower(led.log.read(0, max_bytes=1, end=1).data)  # type: ignore[union-attr]
        assert replica.log.flushed_offset == 0
        story.follow(replica)
        await story.until(lambda: len(story.first.calls) == 1)
        assert replica.log.flushed_offset == 1

    tell(telling, LogSettings(flush_before_ack=True))


def test_partitions_that_sync_do_not_hold_up_those_that_need_not() -> None:
    async def telling(story: Story) -> None:
        led = [story.leads(story.first, index) for index in range(2)]
        replicas = [story.replica(index) for index in range(2)]
        replicas[0].log.configure(LogSettings(flush_before_ack=True))
        story.follow(*replicas)
        story.loop.is_holding = True
        for each in led:
            each.append(b"value")
        story.first.wake()
        await story.caught_up(led[0], replicas[0])
        for number in range(3):
            led[1].append(b"value")
            story.first.wake()
            await story.until(lambda n=number: replicas[1].log.end_offset == n + 2)
        story.loop.is_holding = False
        story.loop.release()

    tell(telling)


def test_a_setting_that_changes_moves_the_partition() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        story.follow(replica)
        led.append(b"value")
        await story.caught_up(led, replica)
        replica.log.configure(LogSettings(flush_before_ack=True))
        story.fetchers.configure([replica])
        led.append(b"value")
        await story.caught_up(led, replica)
        await story.until(lambda: replica.log.flushed_offset == 2)
        assert same(led, replica.log)

    tell(telling)


def test_a_full_disk_stops_one_replica_until_there_is_room() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        led.append(bytes(5000))
        story.follow(replica)
        await story.caught_up(led, replica)
        story.machine.disk.capacity_bytes = story.machine.disk.used_bytes
        for _ in range(10):
            led.append(bytes(5000))
        story.first.wake()
        await story.until(lambda: story.following().state is FollowState.FAILED)
        assert replica.log.end_offset == 1
        before = len(story.first.calls)
        await story.passes(20)
        assert len(story.first.calls) - before < 60, "it is tried ever more rarely"
        story.machine.disk.capacity_bytes += 1_000_000
        await story.caught_up(led, replica)
        assert same(led, replica.log)

    tell(telling)


def test_a_disk_that_is_full_when_a_log_must_be_cut_is_tried_again() -> None:
    async def telling(story: Story) -> None:
        replica = story.replica()
        led = story.leads(story.first, epoch=1)
        led.append(b"a")
        replica.log.append_as_follower(led.log.read(0, max_bytes=1, end=1).data)  # type: ignore[union-attr]
        original = story.runner.truncate
        refusals = [OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full")]

        async def truncate(*arguments: object, **options: object) -> bool:
            if refusals:
                raise refusals.pop()
            return await original(*arguments, **options)  # type: ignore[arg-type]

        story.runner.truncate = truncate  # type: ignore[method-assign]
        second = story.leads(story.first, epoch=2)
        second.append(b"b")
        story.follow(replica, epoch=2)
        await story.caught_up(second, replica)
        await story.until(lambda: replica.log.latest_epoch == 2)
        assert same(second, replica.log)
        assert refusals == []

    tell(telling)


def test_a_large_answer_is_appended_in_slices_and_others_run_between() -> None:
    async def telling(story: Story) -> None:
        led, replica = story.leads(story.first), story.replica()
        for number in range(2000):
            led.append(b"%d" % number)
        seen: list[int] = []
        original = replica.log.append_as_follower

        def counted(*arguments: object, **options: object) -> object:
            appended = original(*arguments, **options)  # type: ignore[arg-type]
            seen.append(appended.last_offset - appended.base_offset + 1)  # type: ignore[union-attr]
            return appended

        replica.log.append_as_follower = counted  # type: ignore[method-assign,assignment]
        story.follow(replica)
        await story.caught_up(led, replica)
        assert same(led, replica.log)
        assert max(seen) <= planning.SLICE_BATCHES
        assert len(story.first.calls) <= 3, "it came as one answer"

    tell(telling)
