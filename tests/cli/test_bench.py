"""`riverrun bench`: it measures only its own records, and reports a missing cluster soon."""

import pytest
from typer.testing import CliRunner

from riverrun.cli.main import build
from riverrun.cli.support.options import UNREACHABLE, USAGE
from tests.cli.commands import Cli
from tests.processes import free_ports

load = pytest.importorskip("riverrun.cli.benchmark.load", reason="needs the extra bench")
ratio_table = pytest.importorskip(
    "riverrun.cli.benchmark.ratio_table", reason="needs the extra bench"
)
floor = pytest.importorskip("riverrun.cli.benchmark.floor", reason="needs the extra bench")
scale = pytest.importorskip("riverrun.cli.benchmark.scale", reason="needs the extra bench")


def test_latency_counts_only_new_records(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    cli.write(name, "not from this run\n" * 100)
    assert load.end_to_end(cli.bootstrap, name, rate=100, seconds=1).records == 75


@pytest.mark.parametrize("activity", ["produce", "consume", "end-to-end"])
def test_a_cluster_that_does_not_respond_is_reported_soon(
    activity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ANSWER_SECONDS_MAX", 0.2)
    address = f"127.0.0.1:{free_ports(1)}"
    words = ["bench", activity, "--bootstrap", address]
    result = CliRunner().invoke(build(words), words)
    assert result.exit_code == UNREACHABLE
    assert f"no cluster answers at {address}" in result.stderr


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("--only weather --nodes 3", "--only: one of load, failures, transactions, security"),
        ("--only failures", "--only failures needs --nodes 3"),
    ],
)
def test_a_part_of_an_unselected_table_is_rejected(told: str, reason: str) -> None:
    words = ["bench", "compare", *told.split()]
    result = CliRunner().invoke(build(words), words)
    assert result.exit_code == USAGE
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "ratio"),
    [
        ("MB/s", 30.0, 10.0, 3.0),
        ("commits/s", 20.0, 10.0, 2.0),
        ("connections/s", 30.0, 10.0, 3.0),
        ("% off", 1.0, 4.0, 4.0),
        ("s", 0.1, 1.0, 10.0),
        ("errors", 0.0, 0.0, 1.0),
    ],
)
def test_a_ratio_above_one_means_riverrun_is_better(
    unit: str, ours: float, theirs: float, ratio: float
) -> None:
    table, row = ratio_table.RatioTable(), ratio_table.Row("activity", "shape", unit)
    table.add("riverrun", row, ours)
    assert table.ratio(row) is None
    table.add("kafka", row, theirs)
    assert table.ratio(row) == pytest.approx(ratio)


def test_memory_is_touched_in_whole_megabytes() -> None:
    assert floor.touch_memory(3_500_000) == 3_000_000


@pytest.mark.timeout(180)
def test_scale_is_measured_with_the_failures_of_a_broker_and_the_controller() -> None:
    report = scale.measure(partitions=600, topic_partitions=200, idle_seconds=1.0)
    figures = {aim.name: aim.value for aim in report.aims}
    assert figures["600 partitions created"] < 120
    for words in ("a broker", "the controller"):
        assert figures[f"failover of {words}: others lead all partitions"] < 20
        assert f"start of {words} after kill -9: all replicas in sync" in figures
    assert any("preferred leaders elected on request" in name for name in figures)
