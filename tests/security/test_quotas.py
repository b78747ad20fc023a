"""The arithmetic of quotas: which limit wins, and that obedient clients stay within it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.security.quotas import (
    CLIENT_ID,
    IP,
    USER,
    ClientQuota,
    Entity,
    PermitBucket,
    QuotaKind,
    QuotaTable,
    SampledRate,
    entity_refusal,
    key_refusal,
)

WINDOWS, WINDOW = 11, 1.0
RATES = st.floats(1.0, 1e9)

BY_PRECEDENCE: list[Entity] = [
    {USER: "ann", CLIENT_ID: "app"},
    {USER: "ann", CLIENT_ID: None},
    {USER: "ann"},
    {USER: None, CLIENT_ID: "app"},
    {USER: None, CLIENT_ID: None},
    {USER: None},
    {CLIENT_ID: "app"},
    {CLIENT_ID: None},
]


@given(st.sets(st.integers(0, 7), min_size=1))
def test_most_specific_entity_wins(given_: set[int]) -> None:
    table = QuotaTable(
        ClientQuota(BY_PRECEDENCE[place], QuotaKind.PRODUCER, place + 1.0)
        for place in sorted(given_)
    )
    match = table.match(QuotaKind.PRODUCER, "ann", "app")
    assert match is not None and match.limit == min(given_) + 1.0
    winner = BY_PRECEDENCE[min(given_)]
    assert match.user == ("ann" if USER in winner else "")
    assert match.client_id == ("app" if CLIENT_ID in winner else "")
    assert table.match(QuotaKind.CONSUMER, "ann", "app") is None


def test_clients_of_a_default_quota_do_not_share_it() -> None:
    table = QuotaTable([ClientQuota({USER: None}, QuotaKind.PRODUCER, 5.0)])
    ann, bob = (table.match(QuotaKind.PRODUCER, user, "app") for user in ("ann", "bob"))
    assert ann is not None and bob is not None and ann != bob


def test_address_without_its_own_rate_has_the_default() -> None:
    rates: list[tuple[str | None, float]] = [("10.0.0.1", 5.0), (None, 9.0)]
    table = QuotaTable(ClientQuota({IP: ip}, QuotaKind.CONNECTION, rate) for ip, rate in rates)
    assert table.connection_rate("10.0.0.1") == 5.0
    assert table.connection_rate("10.0.0.2") == 9.0
    assert not table.has_clients and table.has_addresses


@given(
    RATES,
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 5.0)), min_size=5, max_size=200),
)
def test_client_that_waits_stays_within_its_rate(
    limit: float, requests: list[tuple[float, float]]
) -> None:
    """Amounts are given in seconds of the limit. What is used in any time is at most what the rate
    allows in it and one measured period before, and one request."""
    rate, now = SampledRate(WINDOWS, WINDOW), 100.0
    began, used, largest = now, 0.0, 0.0
    for amount, pause in requests:
        rate.record(amount * limit, now)
        used += amount * limit
        largest = max(largest, amount * limit)
        now += rate.wait(limit, now) + pause
        assert used <= limit * (now - began + (WINDOWS + 1) * WINDOW) * (1 + 1e-9) + largest


@given(RATES, st.floats(0.001, 100.0))
def test_first_burst_waits_for_what_is_above_the_whole_windows(limit: float, amount: float) -> None:
    rate = SampledRate(WINDOWS, WINDOW)
    rate.record(amount * limit, 100.0)
    wait = rate.wait(limit, 100.0)
    assert math.isclose(wait, max(amount - (WINDOWS - 1) * WINDOW, 0.0), abs_tol=1e-6)


def test_steady_use_is_measured_exactly() -> None:
    rate = SampledRate(WINDOWS, WINDOW)
    for step in range(3000):
        rate.record(100.0, step / 100)
    assert rate.measure(29.99) == pytest.approx(10_000, rel=0.01)


def test_use_is_forgotten_after_all_windows() -> None:
    rate = SampledRate(WINDOWS, WINDOW)
    rate.record(1e9, 0.0)
    assert rate.measure(10.9) > 0
    assert rate.measure(11.0) == 0.0


def test_measured_time_never_becomes_zero() -> None:
    rate = SampledRate(1, WINDOW)
    rate.record(5.0, 7.0)
    assert rate.measure(7.0) == 5.0


@given(
    st.floats(0.1, 1000.0), st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 5.0)), min_size=1)
)
def test_permits_are_limited_by_rate_and_burst(
    limit: float, changes: list[tuple[int, float]]
) -> None:
    bucket, now, taken, largest = PermitBucket(11.0), 50.0, 0.0, 0
    for count, pause in changes:
        if bucket.wait(limit, now) == 0:
            bucket.take(count, limit, now)
            taken += count
            largest = max(largest, count)
        assert taken <= (limit * (now - 50.0 + 11.0)) * (1 + 1e-9) + largest
        now += pause


def test_large_change_is_paid_for_afterwards() -> None:
    bucket = PermitBucket(11.0)
    bucket.take(100, 2.0, 0.0)
    assert bucket.wait(2.0, 0.0) == pytest.approx((100 - 22) / 2)
    assert bucket.wait(2.0, 38.0) == pytest.approx(1.0)
    assert bucket.wait(2.0, 40.0) == 0.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *itertools.product(("producer_byte_rate", "request_percentage"), (0.0, -1.0, math.nan)),
        ("producer_byte_rate", 0.5),
        ("consumer_byte_rate", math.inf),
        ("connection_creation_rate", 5.0),
        ("bytes", 5.0),
    ],
)
def test_bad_quota_of_a_user_is_refused(key: str, value: float) -> None:
    assert key_refusal({USER: "ann"}, key, value) is not None


def test_quota_of_an_address_is_a_whole_rate_of_connections() -> None:
    assert key_refusal({IP: "10.0.0.1"}, "connection_creation_rate", 5.0) is None
    assert key_refusal({IP: "10.0.0.1"}, "connection_creation_rate", 5.5) is not None
    assert key_refusal({IP: "10.0.0.1"}, "producer_byte_rate", 5.0) is not None


@pytest.mark.parametrize("entity", [{}, {"group": "g"}, {USER: ""}, {IP: "10.0.0.1", USER: "ann"}])
def test_bad_entity_is_refused(entity: Entity) -> None:
    assert entity_refusal(entity) is not None
