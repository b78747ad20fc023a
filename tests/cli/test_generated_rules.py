"""The generated rules and dashboard with Prometheus itself and a real node."""

import json
import re
import socket
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from riverrun.cli.generate.alerts import ALERTS, DAY_SECONDS
from riverrun.cli.generate.catalogue import Catalogue
from riverrun.cli.generate.promql import UP, series_names
from tests.cli.test_generate import generate, queries
from tests.peers import need
from tests.processes import free_ports, until
from tests.prometheus_tools import find_prometheus, find_promtool
from tests.secure_node import SecureNode

SECONDS_MAX = 60
RARE = {
    "riverrun_connections_closed_total",  # after a timeout of minutes
    "riverrun_jwks_read_failures_total",  # only with OAUTHBEARER
    "riverrun_trace_spans_total",  # only with tracing.endpoint
    "riverrun_trace_spans_dropped_total",
}
"""Metrics that the node of this test does not have."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    """A secure node that has served every kind of client."""
    made = SecureNode(tmp_path_factory.mktemp("node") / "data")
    try:
        made.run("topics", "create", "t")
        made.run("produce", "t", given="a\n")
        made.run("consume", "t", "--group", "g", "--from-beginning", "--max-messages", "1")
        made.run("produce", "t", "--transactional-id", "x", given="b\n")
        refused = made.run("topics", "list", environment={"RIVERRUN_SASL_PASSWORD": "wrong"})
        assert "login failed" in refused.stderr
        send_nonsense(made)
        until(
            lambda: "riverrun_group_lag_seconds{" in scraped(made),
            seconds=SECONDS_MAX,
            what="the lag of the group is measured",
        )
        yield made
    finally:
        made.stop()


def send_nonsense(node: SecureNode) -> None:
    """A request of an unknown API, after which the node closes the connection."""
    host, _, port = node.bootstrap.rpartition(":")
    context = ssl.create_default_context(cafile=node.security["ca"])
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(bytes.fromhex("0000000a 7fff 0000 00000001 ffff"))
        assert connection.recv(100) == b""


def http_of(node: SecureNode) -> str:
    return str(node.told["nodes"][0]["http"])


def scraped(node: SecureNode) -> str:
    with urllib.request.urlopen(f"http://{http_of(node)}/metrics", timeout=10) as response:
        return str(response.read(), "utf-8")


def families(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


@pytest.mark.slow
def test_expressions_name_metrics_of_a_real_node(node: SecureNode) -> None:
    text = scraped(node)
    assert families(text) - set(Catalogue.load().metrics) == set()
    series = set(re.findall(r"^(\w+)[ {]", text, re.MULTILINE))
    for alert in ALERTS:
        assert [one for one in series_names(alert.expression) if one not in {*series, UP}] == []
    catalogue = Catalogue.load()
    for query in queries(json.loads(generate("grafana"))):
        for name in series_names(query.removeprefix("label_values")):
            metric = catalogue.of_series(name)
            assert metric is None or metric.name in families(text) | RARE, query


@pytest.mark.slow
def test_labels_of_the_catalogue_are_those_of_a_real_node(node: SecureNode) -> None:
    catalogue = Catalogue.load()
    seen = 0
    for name, labels in re.findall(r"^(\w+)\{([^}]*)\}", scraped(node), re.MULTILINE):
        metric = catalogue.of_series(name)
        assert metric is not None
        names = set(re.findall(r'(\w+)="', labels)) - {"le"}
        assert names == set(metric.labels), name
        seen += 1
    assert seen > 50


@pytest.mark.peer
def test_promtool_accepts_the_rules_and_the_configuration(tmp_path: Path) -> None:
    promtool = need(find_promtool)
    rules, config = tmp_path / "alerts.yml", tmp_path / "prometheus.yml"
    rules.write_text(generate("alerts"))
    words = ["prometheus", "--targets", "a:1", "--kafka-names", "--partitions"]
    config.write_text(generate(*words, "--rules", str(rules)))
    run(promtool, "check", "rules", str(rules))
    run(promtool, "check", "config", str(config))


def run(program: Path, *words: str) -> str:
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LABELS = 'cluster="c", instance="i"'
GROWING = "0x60 1+1x60"
"""An hour without growth, then one more each minute."""
FIRING: dict[str, dict[str, str]] = {
    "RiverrunScrapeProblem": {'up{job="riverrun", instance="i"}': "0x300"},
    "RiverrunNoNodes": {'up{job="riverrun", instance="i"}': "0x300"},
    "RiverrunActiveController": {f"riverrun_controller_active{{{LABELS}}}": "0x300"},
    "RiverrunQuorumWithoutLeader": {f"riverrun_quorum_leader{{{LABELS}}}": "-1x300"},
    "RiverrunOfflinePartitions": {f"riverrun_controller_offline_partitions{{{LABELS}}}": "2x300"},
    "RiverrunBrokerFenced": {f"riverrun_controller_brokers_fenced{{{LABELS}}}": "1x300"},
    "RiverrunRestarts": {f'process_start_time_seconds{{{LABELS}, job="riverrun"}}': "0+60x300"},
    "RiverrunUnderReplicatedPartitions": {
        f"riverrun_under_replicated_partitions{{{LABELS}}}": "3x300"
    },
    "RiverrunUnderMinIsr": {f"riverrun_under_min_isr_partitions{{{LABELS}}}": "3x300"},
    "RiverrunUncleanElection": {
        f"riverrun_controller_unclean_elections_total{{{LABELS}}}": GROWING
    },
    "RiverrunReassignmentRolledBack": {
        f'riverrun_reassignments_rolled_back_total{{{LABELS}, reason="disk"}}': GROWING
    },
    "RiverrunOfflineLogDirectory": {f"riverrun_log_directory_online{{{LABELS}}}": "0x300"},
    "RiverrunDiskSpace": {
        f"riverrun_disk_free_bytes{{{LABELS}}}": "10x300",
        f"riverrun_disk_size_bytes{{{LABELS}}}": "100x300",
    },
    "RiverrunDiskFull": {
        f"riverrun_disk_free_bytes{{{LABELS}}}": "1x300",
        f"riverrun_disk_size_bytes{{{LABELS}}}": "100x300",
    },
    "RiverrunDiskFullSoon": {
        f"riverrun_disk_free_bytes{{{LABELS}}}": "300-1x300",
        f"riverrun_disk_size_bytes{{{LABELS}}}": "1000x300",
    },
    "RiverrunAppendFailures": {f"riverrun_log_append_failures_total{{{LABELS}}}": GROWING},
    "RiverrunCorruptReplica": {f"riverrun_corrupt_replicas_found_total{{{LABELS}}}": GROWING},
    "RiverrunRepairFailing": {f"riverrun_corrupt_replicas{{{LABELS}}}": "1x300"},
    "RiverrunUncleanablePartitions": {
        f"riverrun_log_cleaner_uncleanable_partitions{{{LABELS}}}": "1x300"
    },
    "RiverrunGroupLag": {
        f'riverrun_group_lag_seconds{{{LABELS}, group="g", topic="t", partition="0"}}': "301x300"
    },
    "RiverrunNoMessages": {
        f'riverrun_topic_records_in_total{{{LABELS}, topic="t"}}': "0+5x20 100x100"
    },
    "RiverrunSlowProduce": {
        f'riverrun_request_seconds_bucket{{{LABELS}, api="Produce", le="0.5"}}': "0+1x300",
        f'riverrun_request_seconds_bucket{{{LABELS}, api="Produce", le="1.0"}}': "0+9x300",
        f'riverrun_request_seconds_bucket{{{LABELS}, api="Produce", le="+Inf"}}': "0+9x300",
    },
    "RiverrunHangingTransactions": {f"riverrun_late_transaction_partitions{{{LABELS}}}": "1x300"},
    "RiverrunConnectionsRefused": {
        f'riverrun_connections_refused_total{{{LABELS}, reason="bug"}}': "0+120x300"
    },
    "RiverrunLoopStalls": {f"riverrun_loop_stalls_total{{{LABELS}}}": "0+60x300"},
    "RiverrunClockSkew": {
        'riverrun_clock_seconds{cluster="c", instance="i"}': "0+60x300",
        'riverrun_clock_seconds{cluster="c", instance="j"}': "7+60x300",
    },
    "RiverrunOpenFiles": {
        f'process_open_fds{{{LABELS}, job="riverrun"}}': "90x300",
        f'process_max_fds{{{LABELS}, job="riverrun"}}': "100x300",
    },
    "RiverrunVersionsDiffer": {
        f'riverrun_build_info{{{LABELS}, version="1"}}': "1x300",
        f'riverrun_build_info{{{LABELS}, version="2"}}': "1x300",
    },
    "RiverrunCertificateExpiration": {
        f'riverrun_certificate_expiry_seconds{{{LABELS}, of="SSL"}}': f"{13 * DAY_SECONDS}x300"
    },
    "RiverrunCertificateExpired": {
        f'riverrun_certificate_expiry_seconds{{{LABELS}, of="SSL"}}': "-5x300"
    },
    "RiverrunLoginFailures": {
        f'riverrun_logins_total{{{LABELS}, mechanism="PLAIN", result="failed"}}': "0+120x300"
    },
    "RiverrunAuditEventsDropped": {f"riverrun_audit_events_dropped_total{{{LABELS}}}": GROWING},
}
"""For each alert, series with one value for each minute that make it fire after two hours."""
QUIET = {
    "riverrun_controller_active": "1x300",
    "riverrun_quorum_leader": "1x300",
    "riverrun_controller_offline_partitions": "0x300",
    "riverrun_controller_brokers_fenced": "0x300",
    "riverrun_controller_unclean_elections_total": "3x300",
    "riverrun_under_replicated_partitions": "0x300",
    "riverrun_under_min_isr_partitions": "0x300",
    "riverrun_log_directory_online": "1x300",
    "riverrun_disk_free_bytes": "500x300",
    "riverrun_disk_size_bytes": "1000x300",
    "riverrun_log_append_failures_total": "7x300",
    "riverrun_corrupt_replicas": "0x300",
    "riverrun_loop_stalls_total": "0+1x300",
    "riverrun_clock_seconds": "1+60x300",
    'up{job="riverrun"}': "1x300",
    'riverrun_build_info{version="1"}': "1x300",
    'riverrun_topic_records_in_total{topic="busy"}': "0+5x300",
    'riverrun_topic_records_in_total{topic="unused"}': "100x300",
    'riverrun_group_lag_seconds{group="g", topic="t"}': "30x300",
    'riverrun_certificate_expiry_seconds{of="SSL"}': f"{30 * DAY_SECONDS}x300",
}
"""A healthy cluster, in which nothing fires."""


def fired(promtool: Path, folder: Path, series: dict[str, str], names: list[str]) -> str:
    """What promtool says about the alerts with these names, two hours after the start. Alerts that
    are expected have no labels here, so one that fires is reported as a difference."""
    (folder / "alerts.yml").write_text(generate("alerts"))
    test = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": at, "values": text} for at, text in series.items()],
                "alert_rule_test": [
                    {"eval_time": "121m", "alertname": name, "exp_alerts": []} for name in names
                ],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.peer
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires(alert: Any, tmp_path: Path) -> None:
    said = fired(need(find_promtool), tmp_path, FIRING[alert.name], [alert.name])
    assert f'alertname="{alert.name}"' in said, said
    assert "{{" not in said
    assert "<no value>" not in said


@pytest.mark.peer
def test_a_healthy_cluster_fires_nothing(tmp_path: Path) -> None:
    series = {
        (text[:-1] + f", {LABELS}}}" if text.endswith("}") else f"{text}{{{LABELS}}}"): values
        for text, values in QUIET.items()
    }
    said = fired(need(find_promtool), tmp_path, series, [alert.name for alert in ALERTS])
    assert "SUCCESS" in said, said


@pytest.mark.peer
@pytest.mark.slow
def test_prometheus_evaluates_rules_and_panels_on_a_real_node(
    node: SecureNode, tmp_path: Path
) -> None:
    program, port = need(find_prometheus), free_ports(1)
    (tmp_path / "alerts.yml").write_text(generate("alerts"))
    config = generate("prometheus", "--targets", http_of(node), "--rules", "alerts.yml")
    (tmp_path / "prometheus.yml").write_text(config.replace('"15s"', '"1s"'))
    process = subprocess.Popen(
        [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
         f"--web.listen-address=127.0.0.1:{port}"],
        cwd=tmp_path, stdout=sys.stderr, stderr=subprocess.STDOUT,
    )  # fmt: skip

    def ask(path: str, **fields: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def is_scraped() -> bool:
        try:
            return bool(ask("query", query="riverrun_build_info")["result"])
        except OSError:
            return False

    try:
        until(is_scraped, seconds=SECONDS_MAX, what="Prometheus scrapes the node")
        for query in queries(json.loads(generate("grafana"))):
            if not query.startswith("label_values"):
                text = query.replace("$__rate_interval", "5s")
                ask("query", query=re.sub(r'"\$\w+"', '".*"', text))
        until(
            lambda: all(one["health"] == "ok" for one in evaluated(ask("rules"))),
            seconds=SECONDS_MAX,
            what="all rules are evaluated",
        )
        firing = [one for one in ask("alerts")["alerts"] if one["state"] == "firing"]
        assert firing == []
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


def evaluated(rules: Any) -> list[Any]:
    return [rule for group in rules["groups"] for rule in group["rules"]]
