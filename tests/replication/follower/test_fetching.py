"""A follower copies its leader's log and acknowledges it by the offset of its next fetch."""

from __future__ import annotations

from uuid import UUID

import pytest
from structlog.testing import capture_logs

from riverrun.model.errors import ErrorCode
from riverrun.replication.follower.followed_partition import FollowState
from riverrun.replication.follower.plan import PARTITIONS_ADDED_MAX
from riverrun.replication.follower.session import NO_SESSION, FollowerFetchSession
from riverrun.storage.settings import LogSettings
from tests.storage.machines import batch, read_all

from .scenario import FIRST, ME, SECOND, TOPIC, Scenario, run, same


def test_new_replica_catches_up_from_offset_zero() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for number in range(300):
            led.append(b"%d" % number, bytes(5000))
        led.commit()
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        await scenario.until(lambda: replica.log.high_watermark == 600)

    run(steps)


def test_append_is_replicated_and_acknowledged_within_milliseconds() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 2)
        for number in range(5):
            before, now = len(scenario.first.calls), scenario.loop.time()
            led.append(b"value")
            scenario.first.wake()
            await scenario.fetches_more_than(before)
            assert scenario.loop.time() - now < 0.005
            (sent,) = scenario.first.calls[-1].partitions
            assert (sent.offset, replica.log.end_offset) == (number + 1, number + 1)

    run(steps)


def test_first_fetch_is_full_and_later_ones_name_only_changes() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first, epoch=4), scenario.replica()
        led.append(b"a")
        scenario.follow(replica, epoch=4)
        await scenario.until(lambda: len(scenario.first.calls) == 3)
        first, second, third = scenario.first.calls
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

    run(steps)


def test_no_fetch_is_sent_before_registration() -> None:
    async def steps(scenario: Scenario) -> None:
        scenario.epoch = -1
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(b"a")
        scenario.follow(replica)
        await scenario.passes(1)
        assert scenario.loop.connects == []
        scenario.epoch = 3
        await scenario.caught_up(led, replica)
        assert scenario.first.calls[0].replica_epoch == 3

    run(steps)


def test_partitions_share_a_session_and_fetches_name_only_changed_ones() -> None:
    async def steps(scenario: Scenario) -> None:
        count = 2 * PARTITIONS_ADDED_MAX
        led = [scenario.leads(scenario.first, index) for index in range(count)]
        replicas = [scenario.replica(index) for index in range(count)]
        scenario.follow(*replicas)
        await scenario.until(lambda: len(scenario.first.calls) >= 3)
        named = [len(call.partitions) for call in scenario.first.calls]
        assert named == [PARTITIONS_ADDED_MAX, PARTITIONS_ADDED_MAX, 0], "a few in each request"
        for index in (3, 500, 999):
            led[index].append(b"value")
        before = len(scenario.first.calls)
        scenario.first.wake()
        await scenario.until(lambda: len(scenario.first.calls) > before)
        sent = scenario.first.calls[before]
        assert [(p.partition, p.offset) for p in sent.partitions] == [(3, 1), (500, 1), (999, 1)]
        assert len(scenario.loop.connects) == 1

    run(steps)


def test_every_fetch_names_all_partitions_if_the_leader_keeps_no_session() -> None:
    session = FollowerFetchSession()
    assert session.is_kept
    session.accepted(NO_SESSION)
    assert not session.is_kept
    session.accepted(7)
    assert session.is_kept


def test_large_backlog_of_many_partitions_is_fetched_fairly() -> None:
    async def steps(scenario: Scenario) -> None:
        scenario.first.response_bytes_max = 30_000
        led = [scenario.leads(scenario.first, index) for index in range(5)]
        replicas = [scenario.replica(index) for index in range(5)]
        for each in led:
            for _ in range(20):
                each.append(bytes(9000))
        scenario.follow(*replicas)
        for one, other in zip(led, replicas, strict=True):
            await scenario.caught_up(one, other)
            assert same(one, other.log)

    run(steps)


@pytest.mark.parametrize("fetchers", [1, 3])
def test_partitions_are_spread_over_fetchers(fetchers: int) -> None:
    async def steps(scenario: Scenario) -> None:
        led = [scenario.leads(scenario.first, index) for index in range(20)]
        replicas = [scenario.replica(index) for index in range(20)]
        for each in led:
            each.append(b"value")
        scenario.follow(*replicas)
        for one, other in zip(led, replicas, strict=True):
            await scenario.caught_up(one, other)
        assert len(scenario.loop.connects) == fetchers

    run(steps, fetchers=fetchers)


def test_replica_of_a_compacted_log_keeps_wide_offset_gaps() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(b"a", b"b")
        for gap in (100, 10_000, 5_000_000_000):
            data = batch(b"c")
            data[0:8] = (led.log.end_offset + gap).to_bytes(8, "big")
            data[12:16] = bytes(4)
            led.log.append_as_follower(data)
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        assert replica.log.end_offset > 5_000_000_000

    run(steps)


def test_log_that_starts_after_a_wide_gap_is_recovered() -> None:
    async def steps(scenario: Scenario) -> None:
        replica = scenario.replica()
        data = batch(b"far")
        data[0:8] = (6_000_000_000).to_bytes(8, "big")
        data[12:16] = bytes(4)
        replica.log.append_as_follower(data)
        await scenario.runner.flushed(replica.log, replica.log.end_offset)

    scenario = run(steps)
    scenario.machine.lose_power()
    _, log = scenario.machine.load(LogSettings())
    log.high_watermark = log.end_offset
    assert read_all(log)[-1] == (6_000_000_000, b"far")


def test_epochs_and_producer_state_are_replicated() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for epoch, producer in ((0, 5), (3, 6), (4, 5)):
            led.epoch = epoch
            for number in range(3):
                sequence = number + (3 if (epoch, producer) == (4, 5) else 0)
                led.append(b"value", producer=producer, sequence=sequence)
        scenario.follow(replica, epoch=4)
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        assert replica.log.epochs.entries == [(0, 0), (3, 3), (4, 6)]
        assert len(replica.log.producers.entries[5].batches) == 5

    run(steps)


def test_log_start_offset_follows_the_leader() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for _ in range(10):
            led.append(b"value")
        led.commit()
        scenario.follow(replica)
        await scenario.until(lambda: replica.log.high_watermark == 10)
        led.log.delete_records_before(6)
        await scenario.until(lambda: replica.log.start_offset == 6)
        await scenario.until(lambda: bool(scenario.first.calls[-1].partitions))
        assert scenario.first.calls[-1].partitions[0].log_start_offset == 6

    run(steps)


def test_followers_high_watermark_is_bounded_by_its_log_end() -> None:
    async def steps(scenario: Scenario) -> None:
        scenario.first.response_bytes_max = 1
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for _ in range(10):
            led.append(bytes(100))
        led.commit()
        scenario.follow(replica)
        for end in range(1, 11):
            await scenario.reaches(replica, end)
            assert replica.log.high_watermark == replica.log.end_offset
        led.append(b"not committed")
        scenario.first.wake()
        await scenario.caught_up(led, replica)
        assert replica.log.high_watermark == 10
        assert scenario.following().lag == 0

    run(steps)


def test_corrupt_batch_is_rejected_and_fetched_again() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for _ in range(4):
            led.append(b"value")

        def damage(result):  # type: ignore[no-untyped-def]
            data = bytearray(result.records)
            data[-3] ^= 1
            return result._replace(records=bytes(data))

        scenario.first.changes = [damage, damage]
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        assert same(led, replica.log)
        counter = scenario.metrics.counter("riverrun_replica_fetch_corrupt_total", "")
        assert counter.value == 2

    run(steps)


def test_batch_with_an_epoch_above_the_leaders_is_rejected() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(b"a")
        data = batch(b"b")
        data[0:8], data[12:16] = (1).to_bytes(8, "big"), (9).to_bytes(4, "big")
        led.log.append_as_follower(data)
        scenario.follow(replica)
        await scenario.until(lambda: scenario.following().state is FollowState.DELAYED)
        assert replica.log.end_offset == 1

    run(steps)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH],
)
def test_lost_session_is_restarted_at_once(code: ErrorCode) -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 2)
        old = scenario.first.calls[1].session_id
        scenario.first.errors = [code]
        led.append(b"a")
        scenario.first.wake()
        await scenario.caught_up(led, replica)
        await scenario.until(lambda: scenario.first.calls[-1].session_epoch == 1)
        restarted = next(call for call in scenario.first.calls[2:] if call.session_epoch == 0)
        is_gone = code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert restarted.session_id == (0 if is_gone else old), "the leader closes the old session"
        assert [p.offset for p in restarted.partitions] == [1]
        assert len(scenario.loop.connects) == 1

    run(steps)


def test_leader_without_sessions_gets_full_fetches() -> None:
    async def steps(scenario: Scenario) -> None:
        scenario.first.keeps_sessions = False
        led = [scenario.leads(scenario.first, index) for index in range(2)]
        replicas = [scenario.replica(index) for index in range(2)]
        scenario.follow(*replicas)
        for _ in range(3):
            led[0].append(b"value")
            scenario.first.wake()
            await scenario.caught_up(led[0], replicas[0])
        assert all(len(call.partitions) == 2 for call in scenario.first.calls)

    run(steps)


def test_recreated_topic_is_another_topic() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(b"old")
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        scenario.remove(replica)
        again = UUID(int=1 << 80)
        del scenario.first.led[TOPIC, 0]
        new, second = scenario.leads(scenario.first, topic=again), scenario.replica(topic=again)
        new.append(b"new")
        scenario.follow(second)
        await scenario.caught_up(new, second)
        assert same(new, second.log)
        assert scenario.first.sessions[scenario.first.calls[-1].session_id].wanted.keys() == {
            (again, 0)
        }

    run(steps)


def test_long_poll_does_not_delay_new_partitions() -> None:
    async def steps(scenario: Scenario) -> None:
        idle, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 2)
        assert idle.log.end_offset == 0
        led, other = scenario.leads(scenario.first, 1), scenario.replica(1)
        led.append(b"value")
        now = scenario.loop.time()
        scenario.follow(other)
        await scenario.caught_up(led, other)
        assert scenario.loop.time() - now < 0.02
        third, another = scenario.leads(scenario.first, 2), scenario.replica(2)
        third.append(b"value")
        now = scenario.loop.time()
        scenario.follow(another)
        await scenario.caught_up(third, another)
        assert scenario.loop.time() - now < 0.1
        assert len(scenario.loop.connects) == 2, "the second time it waits for a short poll"

    run(steps)


def test_dead_leader_is_retried_with_back_off_and_its_successor_at_once() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(b"a")
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        scenario.first.die()
        began = scenario.loop.time()
        await scenario.passes(10)
        tries = [when - began for when in scenario.loop.connects if when > began]
        assert 10 < len(tries) < 22
        assert tries[1] < 0.2
        successor = scenario.leads(scenario.second, epoch=1, copied=led.log)
        successor.append(b"b")
        now = scenario.loop.time()
        scenario.follow(replica, leader=SECOND, epoch=1)
        await scenario.caught_up(successor, replica)
        assert scenario.loop.time() - now < 0.02
        assert same(successor, replica.log)

    run(steps)


def test_returning_leader_is_fetched_from_again() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 2)
        scenario.first.die()
        await scenario.until(lambda: len(scenario.loop.connects) > 3)
        scenario.first.is_up = True
        led.append(b"a")
        await scenario.caught_up(led, replica)

    run(steps)


def test_follower_reconnects_when_the_leader_sends_nothing() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.first.responds_to_fetches = False
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 1)
        await scenario.until(lambda: len(scenario.loop.connects) > 1)
        assert 2 < scenario.loop.time() < 5
        scenario.first.responds_to_fetches = True
        led.append(b"a")
        await scenario.caught_up(led, replica)

    run(steps, socket_timeout_ms=2000)


def test_follower_reconnects_at_once_to_a_leader_that_restarted_after_power_loss() -> None:
    """Nothing resets the connection to its last incarnation (simulation seed 3064)."""

    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.first.responds_to_fetches = False
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 1)
        await scenario.passes(1.5)
        scenario.first.responds_to_fetches = True
        again = scenario.leads(scenario.first, epoch=1, copied=led.log)
        again.append(b"a")
        now = scenario.loop.time()
        scenario.follow(replica, epoch=1)
        await scenario.caught_up(again, replica)
        assert scenario.loop.time() - now < 0.02
        assert len(scenario.loop.connects) == 2

    run(steps)


def test_failing_partition_does_not_delay_the_others() -> None:
    async def steps(scenario: Scenario) -> None:
        led = [scenario.leads(scenario.first, index) for index in range(2)]
        replicas = [scenario.replica(index) for index in range(2)]
        scenario.first.partition_errors[TOPIC, 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        scenario.follow(*replicas)
        for number in range(50):
            led[1].append(b"value")
            scenario.first.wake()
            await scenario.reaches(replicas[1], number + 1)
        before = len(scenario.first.calls)
        await scenario.passes(20)
        assert len(scenario.first.calls) - before < 100, "retries back off"
        del scenario.first.partition_errors[TOPIC, 0]
        led[0].append(b"value")
        now = scenario.loop.time()
        await scenario.caught_up(led[0], replicas[0])
        assert scenario.loop.time() - now < 1.5

    run(steps)


def test_leader_with_stale_metadata_is_retried_soon() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first, epoch=0), scenario.replica()
        led.append(b"a")
        scenario.follow(replica, epoch=1)
        await scenario.until(lambda: scenario.following().state is FollowState.DELAYED)
        led.epoch = 1
        now = scenario.loop.time()
        await scenario.caught_up(led, replica)
        assert scenario.loop.time() - now < 0.06

    run(steps)


def test_node_that_becomes_leader_stops_fetching() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        scenario.follow(replica)
        await scenario.until(lambda: len(scenario.first.calls) == 2)
        scenario.follow(replica, leader=ME, epoch=1)
        led.append(b"late")
        scenario.first.wake()
        await scenario.passes(2)
        assert replica.log.end_offset == 0
        assert list(scenario.fetchers.followed_partitions()) == []
        assert not scenario.first.pipes

    run(steps)


def test_throttled_replicas_keep_to_their_rate_until_they_are_in_sync() -> None:
    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        for _ in range(40):
            led.append(bytes(50_000))
        led.commit()
        scenario.follow(replica)
        await scenario.passes(5)
        assert 100_000 <= replica.log.size_bytes <= 900_000
        scenario.follow(replica, isr=(FIRST, ME))
        await scenario.caught_up(led, replica)
        assert scenario.loop.time() < 8

    run(
        steps,
        LogSettings(follower_throttled_replicas=("0:1",)),
        throttled_rate=100_000,
        bytes_max=100_000,
    )


def test_replica_that_had_all_committed_records_lately_is_not_throttled() -> None:
    """The leader delays writes for it until it joins, so it must get a burst at once."""

    async def steps(scenario: Scenario) -> None:
        led, replica = scenario.leads(scenario.first), scenario.replica()
        led.append(bytes(50_000))
        led.commit()
        scenario.follow(replica)
        await scenario.caught_up(led, replica)
        for _ in range(20):
            led.append(bytes(50_000))
        led.commit()
        await scenario.caught_up(led, replica)
        assert scenario.loop.time() < 4

    run(
        steps,
        LogSettings(follower_throttled_replicas=("0:1",)),
        throttled_rate=10_000,
        bytes_max=100_000,
    )


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_failures_of_many_partitions_are_logged_in_few_lines_with_a_count(code: ErrorCode) -> None:
    """Retries of single partitions are spread by jitter. Lines count all of them."""
    count = 300

    async def steps(scenario: Scenario) -> None:
        for index in range(count):
            scenario.leads(scenario.first, index)
            scenario.first.partition_errors[TOPIC, index] = code
        scenario.follow(*(scenario.replica(index) for index in range(count)))
        await scenario.passes(30)

    with capture_logs() as logs:
        run(steps)
    lines = [line for line in logs if line["event"] == "replica fetch failed"]
    assert 1 <= len(lines) <= 3
    assert sum(line["partitions"] for line in lines) == count
    assert {line["error"] for line in lines} == {code.name}
    assert lines[0]["first"].count(", ") == 2
