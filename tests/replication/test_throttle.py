"""The rate limit of replicas that catch up (KIP-73)."""

from __future__ import annotations

import pytest

from riverrun.model.settings import LONG_MAX
from riverrun.replication.throttle import CHECK_SECONDS, Throttle, follower_list, leader_list
from tests.replication.leaders import ME, THREE, TWO, Leader

MB = 1_000_000


def throttle(rate: int = MB) -> Throttle:
    return Throttle(ME, rate, leader_list)


def seconds_for(one: Throttle, count: int, chunk: int = MB // 10, start: float = 10.0) -> float:
    """The time in which a sender that obeys the throttle sends this many bytes."""
    now = start
    for _ in range(count // chunk):
        while pause := one.pause_seconds(now):
            now += pause
        one.spend(chunk, now)
    return now - start


def test_bytes_take_the_time_of_the_rate_after_the_burst() -> None:
    assert seconds_for(throttle(), 11 * MB) == pytest.approx(10, abs=0.2)


def test_unlimited_rate_never_pauses() -> None:
    assert seconds_for(throttle(LONG_MAX), 100 * MB) == 0


def test_raised_rate_applies_to_bytes_that_were_sent_before() -> None:
    one = throttle(1)
    one.spend(MB, 0.0)
    assert one.pause_seconds(0.0) == CHECK_SECONDS, "the rate is checked again before 12 days"
    one.configure(MB, 1.0)
    assert one.pause_seconds(1.0) == pytest.approx(1.0, abs=0.01)
    assert one.pause_seconds(2.1) == 0


def test_lowered_rate_takes_the_credit_of_the_old_one() -> None:
    one = throttle(LONG_MAX)
    assert one.pause_seconds(5.0) == 0
    one.configure(MB, 5.0)
    assert seconds_for(one, 3 * MB, start=5.0) == pytest.approx(2, abs=0.2)


def test_rate_of_zero_stops_the_replica_but_not_its_checks() -> None:
    one = throttle(0)
    one.spend(1, 0.0)
    assert 0 < one.pause_seconds(1000.0) <= CHECK_SECONDS


def test_late_charge_does_not_pay_the_same_time_twice() -> None:
    """A fetcher charges with the time of its response, after another has asked with a later one."""
    one = throttle()
    one.spend(5 * MB, 10.0)
    one.spend(0, 9.0)
    assert one.pause_seconds(13.5) == pytest.approx(0.5, abs=0.01), "1 MB of burst, 3.5 MB of time"


@pytest.mark.parametrize(
    ("named", "applies"),
    [((), False), (("*",), True), (("0:1",), True), (("0:2", "1:1"), False), (("0:11",), False)],
)
def test_only_named_replicas_are_throttled(named: tuple[str, ...], applies: bool) -> None:
    leader = Leader(isr=(ME, TWO), leader_throttled_replicas=named)
    assert throttle().applies_to(leader.partition, THREE) is applies
    assert not Throttle(ME, MB, follower_list).applies_to(leader.partition, THREE)


def test_replica_in_sync_is_never_throttled() -> None:
    leader = Leader(isr=(ME, TWO), leader_throttled_replicas=("*",))
    one = throttle()
    assert not one.applies_to(leader.partition, TWO)
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    assert leader.proposal().isr == (ME, TWO, THREE)
    assert not one.applies_to(leader.partition, THREE), "a write waits for a replica that joins"


def test_replica_that_holds_back_the_high_watermark_is_not_throttled() -> None:
    """It lacks committed records, but a write waits until it has nearly caught up and joins."""
    leader = Leader(isr=(ME, TWO), leader_throttled_replicas=("*",))
    one = throttle()
    leader.append(*[b"x"] * 20)
    leader.fetch(TWO, 20)
    leader.fetch(THREE, 0)
    assert one.applies_to(leader.partition, THREE)
    leader.append(*[b"x"] * 10)
    leader.fetch(TWO, 30)
    leader.fetch(THREE, 20)
    leader.append(b"y")
    leader.fetch(TWO, 31)
    assert leader.high_watermark == 30, "the write waits for replica 3"
    assert not one.applies_to(leader.partition, THREE)
    leader.now += 20
    leader.partition.check_isr()
    assert leader.high_watermark == 31, "the replica has fallen behind"
    assert one.applies_to(leader.partition, THREE)
