"""Rates of partitions from the answers of brokers, and when plans regard them."""

from __future__ import annotations

from riverrun.model.ids import NodeId
from riverrun.placement.traffic import (
    SIGNIFICANT_RATE,
    UNKNOWN_RATES,
    BrokerTraffic,
    ClusterTraffic,
)

ONE, TWO = NodeId(1), NodeId(2)
MB = 1_000_000.0


def answer(bytes_in: float, bytes_out: float = 0.0) -> BrokerTraffic:
    """A broker that leads two partitions of ``t``."""
    return BrokerTraffic(
        seconds=60,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        topics={"t": (bytes_in / 2, bytes_out / 2)},
    )


def test_rate_of_a_partition_is_what_its_leader_reports() -> None:
    traffic = ClusterTraffic({ONE: answer(8 * MB, 4 * MB), TWO: answer(2 * MB)}, (ONE, TWO))
    assert traffic.is_measured
    assert traffic.is_significant
    assert traffic.planned("t", ONE) == (4 * MB, 2 * MB)
    assert traffic.planned("t", TWO) == (1 * MB, 0.0)
    assert traffic.planned("idle", ONE) == (0.0, 0.0)
    assert traffic.planned("t", None) == (0.0, 0.0)
    assert (traffic.bytes_in, traffic.bytes_out) == (10 * MB, 4 * MB)


def test_new_leader_is_assumed_to_have_the_rates_of_other_leaders() -> None:
    """Or of the former one. It would look idle otherwise, and get more than its share."""
    new = BrokerTraffic(seconds=60, unsettled=["t", "u"])
    traffic = ClusterTraffic({ONE: answer(8 * MB, 4 * MB), TWO: new}, (ONE, TWO))
    assert traffic.planned("t", TWO) == (4 * MB, 2 * MB)
    assert traffic.bytes_in_of("t", TWO) == 4 * MB
    assert traffic.planned("u", TWO) == (0.0, 0.0)
    assert traffic.bytes_in_of("u", TWO) is None, "nobody knows it"


def test_plans_go_by_sizes_while_a_broker_is_silent() -> None:
    traffic = ClusterTraffic({ONE: answer(80 * MB)}, (ONE, TWO))
    assert not traffic.is_measured
    assert traffic.silent == (TWO,)
    assert traffic.planned("t", ONE) == UNKNOWN_RATES
    assert traffic.bytes_in_of("t", ONE) == 40 * MB, "the time of a move needs no other broker"
    assert traffic.bytes_in_of("t", TWO) is None
    assert traffic.bytes_in_of("t", None) is None


def test_broker_without_a_measurement_is_silent() -> None:
    traffic = ClusterTraffic({ONE: BrokerTraffic()}, (ONE,))
    assert traffic.silent == (ONE,)
    assert not traffic.is_measured


def test_cluster_without_answers_is_not_measured() -> None:
    assert not ClusterTraffic({}).is_measured
    assert ClusterTraffic({}).planned("t", ONE) == UNKNOWN_RATES


def test_small_traffic_is_not_worth_a_move() -> None:
    small = ClusterTraffic({ONE: answer(SIGNIFICANT_RATE), TWO: answer(0.5 * MB)}, (ONE, TWO))
    assert small.is_measured
    assert small.planned("t", ONE) == UNKNOWN_RATES
    assert small.bytes_in_of("t", ONE) == MB / 2


def test_reads_count_where_writes_are_too_small() -> None:
    traffic = ClusterTraffic({ONE: answer(100.0, 40 * MB), TWO: answer(0.0, 0.0)}, (ONE, TWO))
    assert traffic.planned("t", ONE) == (0.0, 20 * MB)
