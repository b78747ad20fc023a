"""`riverrun bench compare --only security`: its figures come from the mechanisms that they name."""

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra bench")

from riverrun.cli.benchmark import load, ratio_table
from riverrun.cli.benchmark.clusters import Nodes
from riverrun.cli.benchmark.load import BenchmarkError, Shape
from riverrun.cli.benchmark.security import (
    authorization,
    handshakes,
    quota_accuracy,
    tls_clusters,
    tls_load,
)
from riverrun.security.acls import Authorizer

SMALL = Shape(megabytes=1, acks="all")


def trusted(nodes: Nodes) -> Path:
    return Path(nodes.properties["ssl.truststore.location"])


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with tls_clusters.riverrun(3) as started:
        yield started


@pytest.mark.slow
def test_every_listener_between_nodes_and_for_clients_has_tls(nodes: Nodes) -> None:
    context = ssl.create_default_context(cafile=str(trusted(nodes)))
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    for member in nodes.members.values():
        for address in (member.address, member.controller):
            assert handshakes.ask_versions(address, context).startswith("TLS_")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshakes.ask_versions(nodes.members[1].address, context)


@pytest.mark.slow
def test_tls_rows_have_throughput_and_cpu_of_both_directions(nodes: Nodes) -> None:
    table = ratio_table.RatioTable()
    tls_load.measure_tls("riverrun", nodes, table, [SMALL], warm_up=SMALL)
    found = {(row.activity, row.unit) for row in table.figures}
    assert found == {
        (activity, unit) for activity in ("produce", "consume") for unit in ("MB/s", "CPU ms/MB")
    }
    assert all("TLS" in row.shape for row in table.figures)


@pytest.mark.slow
def test_connections_are_counted_with_the_cpu_of_the_server(nodes: Nodes) -> None:
    found = handshakes.count_handshakes(nodes.members[1], trusted(nodes), seconds=1.0)
    assert found.count > 0 and found.per_second > 0
    assert 0 < found.cpu_ms_each < 1000


@pytest.mark.slow
def test_a_refused_handshake_is_an_error_of_the_benchmark(nodes: Nodes, tmp_path: Path) -> None:
    other = tls_clusters.create_files(tmp_path)
    with pytest.raises(BenchmarkError, match="CERTIFICATE_VERIFY_FAILED"):
        handshakes.count_handshakes(nodes.members[1], other.truststore, seconds=1.0)


def test_decisions_are_timed_with_as_many_rules_as_the_row_says() -> None:
    table = ratio_table.RatioTable()
    assert len(authorization.rules(500)) == 500
    authorization.add_decision_rows(table, 500)
    assert [row.unit for row in table.figures] == ["µs", "µs", "ms"]
    assert all(row.shape.startswith("500 ACLs") for row in table.figures)


def test_cached_decisions_do_not_search_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0
    decide = Authorizer.decide

    def counted(self: Authorizer, *given: object) -> object:
        nonlocal searches
        searches += 1
        return decide(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Authorizer, "decide", counted)
    authorization.time_decisions(authorization.rules(200), decisions=50)
    assert searches == 50


@pytest.mark.slow
def test_throughput_is_measured_without_and_with_an_authorizer() -> None:
    table = ratio_table.RatioTable()
    small = replace(SMALL, acks="1")
    authorization.measure_authorizer("riverrun", table, count=500, shape=small, warm_up=small)
    labels = {row.shape.rpartition("KB, ")[2] for row in table.figures}
    assert labels == {"no authorizer", "authorizer with 500 ACLs"}


@pytest.mark.slow
def test_rows_of_quotas_say_how_far_the_rate_is_off_or_that_it_is_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota_accuracy, "FILL", replace(quota_accuracy.FILL, megabytes=5))
    table = ratio_table.RatioTable()
    test = quota_accuracy.QuotaTest(
        megabytes_per_second=(1, 1_000_000),
        filling_seconds=2.0, measured_seconds=1.0, settling_seconds=0.5, free_seconds=0.5,
    )  # fmt: skip
    quota_accuracy.measure_quotas("riverrun", table, test)
    rows = {row.shape: row.unit for row in table.figures}
    for kind in ("producer_byte_rate", "consumer_byte_rate"):
        assert rows[f"{kind} 1 MB/s"] == "% off"
        assert rows[f"{kind} 1000000 MB/s, not reached; speed without a quota"] == "MB/s"


def test_servers_of_the_benchmark_are_reached_with_their_login(tmp_path: Path) -> None:
    files = tls_clusters.create_files(tmp_path)
    nodes = Nodes(tmp_path, properties=files.client_properties())
    assert load.client_settings(nodes.bootstrap)["ssl.ca.location"] == str(files.truststore)
