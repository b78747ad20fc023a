"""A follower and its disk: flushes before acknowledgements, a full disk, large responses."""

from __future__ import annotations

import errno

from riverrun.replication.follower import plan as planning
from riverrun.replication.follower.followed_partition import FollowState
from riverrun.storage.settings import LogSettings

from .scenario import Scenario, run, same


def test_with_flush_before_ack_records_are_flushed_before_they_are_acknowledged() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 1)
        for number in range(5):
            scenario.loop.is_holding = True
            before = len(scenario.first.calls)
            led.append(b"value")
            scenario.first.wake()
            await scenario.caught_up(led, replica)
            await scenario.passes(2)
            assert len(scenario.first.calls) == before, "fetched before the flush"
            scenario.loop.is_holding = False
            scenario.loop.release()
            await scenario.fetches_more_than(before)
            assert scenario.first.calls[before].partitions[0].offset == number + 1
            assert replica.log.flushed_offset == number + 1

    run(steps, LogSettings(flush_before_ack=True))


def test_records_found_at_startup_are_flushed_before_they_are_acknowledged() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(b"value")
        replica.log.append_as_follower(led.log.read(0, max_bytes=1, end=1).data)  # type: ignore[union-attr]
        assert replica.log.flushed_offset == 0
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 1)
        assert replica.log.flushed_offset == 1

    run(steps, LogSettings(flush_before_ack=True))


def test_flushes_do_not_delay_partitions_without_flush_before_ack() -> None:
    async def steps(scenario: Scenario) -> None:
        led = [scenario.leads(scenario.first, index) for index in range(2)]
        replicas = [scenario.replica(index) for index in range(2)]
        replicas[0].log.configure(LogSettings(flush_before_ack=True))
        scenario.follow(*replicas)
        scenario.loop.is_holding = True
        for each in led:
            each.append(b"value")
        scenario.first.wake()
        await scenario.caught_up(led[0], replicas[0])
        for number in range(3):
            led[1].append(b"value")
            scenario.first.wake()
            await scenario.reaches(replicas[1], number + 2)
        scenario.loop.is_holding = False
        scenario.loop.release()

    run(steps)


def test_partition_moves_to_another_fetcher_when_its_setting_changes() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        led.append(b"value")
        await scenario.caught_up(led, replica)
        replica.log.configure(LogSettings(flush_before_ack=True))
        scenario.fetchers.update([replica])
        led.append(b"value")
        await scenario.caught_up(led, replica)
        await scenario.until(lambda: replica.log.flushed_offset == 2)
        assert same(led, replica.log)

    run(steps)


def test_replica_on_a_full_disk_fails_until_there_is_space() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(bytes(5000))
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        scenario.machine.disk.capacity_bytes = scenario.machine.disk.used_bytes
        for _ in range(10):
            led.append(bytes(5000))
        scenario.first.wake()
        await scenario.until(lambda: scenario.following().state is FollowState.FAILED)
        assert replica.log.end_offset == 1
        before = len(scenario.first.calls)
        await scenario.passes(20)
        assert len(scenario.first.calls) - before < 60, "retries back off"
        scenario.machine.disk.capacity_bytes += 1_000_000
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)

    run(steps)


def test_truncation_on_a_full_disk_is_retried() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        led = scenario.leads(scenario.first, epoch=1)
        led.append(b"a")
        replica.log.append_as_follower(led.log.read(0, max_bytes=1, end=1).data)  # type: ignore[union-attr]
        original = scenario.runner.truncate
        errors = [OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full")]

        async def truncate(*arguments: object, **options: object) -> bool:
            if errors:
                raise errors.pop()
            return await original(*arguments, **options)  # type: ignore[arg-type]

        scenario.runner.truncate = truncate  # type: ignore[method-assign]
        second = scenario.leads(scenario.first, epoch=2)
        second.append(b"b")
        scenario.follow(replica, epoch=2)
        await scenario.caught_up(second, replica)
        await scenario.until(lambda: replica.log.latest_epoch == 2)
        assert same(second, replica.log)
        assert errors == []

    run(steps)


def test_large_response_is_appended_in_slices() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for number in range(2000):
            led.append(b"%d" % number)
        seen: list[int] = []
        original = replica.log.append_as_follower

        def counted(*arguments: object, **options: object) -> object:
            appended = original(*arguments, **options)  # type: ignore[arg-type]
            seen.append(appended.last_offset - appended.base_offset + 1)  # type: ignore[union-attr]
            return appended

        replica.log.append_as_follower = counted  # type: ignore[method-assign,assignment]
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        assert max(seen) <= planning.SLICE_BATCHES
        assert len(scenario.first.calls) <= 3, "it was one response"

    run(steps)
