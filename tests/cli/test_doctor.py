"""``riverrun doctor``: the checks with given facts, and the command with real nodes."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from riverrun.cli.certs.authority import Authority
from riverrun.cli.doctor.certificates import (
    DAY_SECONDS,
    CertificateFacts,
    certificate_findings,
    names_host,
    read_certificate,
)
from riverrun.cli.doctor.cluster_checks import cluster_findings
from riverrun.cli.doctor.cluster_facts import CheckedNode, ClusterFacts, NodeMetrics, parse_metrics
from riverrun.cli.doctor.disks import DiskFacts, disk_findings, file_system_of, read_disk
from riverrun.cli.doctor.findings import Finding, Severity, findings_table, verdict
from riverrun.cli.doctor.machine import MachineFacts, machine_findings, read_machine
from riverrun.cli.doctor.ports import (
    NetworkFacts,
    PortUse,
    listening_sockets,
    network_findings,
    read_network,
)
from riverrun.cli.doctor.settings_check import listener_findings, setting_findings
from riverrun.cli.doctor.software import (
    SoftwareFacts,
    needed,
    read_software,
    satisfies,
    software_findings,
)
from riverrun.cli.main import build
from riverrun.security.tls import TlsSettings
from tests.cli.commands import Cli
from tests.processes import Riverrun, free_ports
from tests.secure_node import SecureNode

GIB = 2**30
MACHINE = MachineFacts(
    open_files_max=262_144,
    swap_bytes=0,
    swappiness=60,
    swapped_bytes=0,
    available_bytes=GIB,
    process=7,
)
DISK = DiskFacts(
    directory="/data",
    exists=True,
    total_bytes=100 * GIB,
    free_bytes=50 * GIB,
    free_files_ratio=0.9,
    kind="xfs",
    is_read_only=False,
    is_writable=True,
    fsync_seconds=0.001,
)
METRICS = NodeMetrics(
    version="1.0", clock_ahead_seconds=0.0, clock_error_seconds=0.01, certificates={}
)
SAFE = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}
NODES = tuple(
    CheckedNode(node=number, rack=None, settings=SAFE, metrics=METRICS) for number in (1, 2, 3)
)
CLUSTER = ClusterFacts(nodes=NODES, voters=3, problems=())


def worst(findings: Iterator[Finding]) -> Severity:
    order = list(Severity)
    return max((one.severity for one in findings), key=order.index, default=Severity.GOOD)


def serious(findings: Iterator[Finding]) -> list[str]:
    found = [one for one in findings if one.severity is not Severity.GOOD]
    assert all(one.remedy for one in found), found
    return [one.text for one in found]


# The machine


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        (MACHINE, Severity.GOOD),
        (replace(MACHINE, open_files_max=None), Severity.GOOD),
        (replace(MACHINE, open_files_max=20_000), Severity.CARE),
        (replace(MACHINE, open_files_max=1024), Severity.BAD),
        (replace(MACHINE, open_files_max=1024, process=None), Severity.NOTE),
        (replace(MACHINE, swapped_bytes=4096), Severity.CARE),
        (replace(MACHINE, swap_bytes=GIB), Severity.NOTE),
        (replace(MACHINE, swap_bytes=GIB, swappiness=1), Severity.GOOD),
        (replace(MACHINE, available_bytes=1000), Severity.CARE),
    ],
)
def test_limits_and_memory(facts: MachineFacts, severity: Severity) -> None:
    assert worst(machine_findings(facts)) is severity
    serious(machine_findings(facts))


def test_the_limit_is_that_of_the_running_process() -> None:
    command = ["bash", "-c", "ulimit -n 321; echo ready; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert read_machine(process.pid).open_files_max == 321
        process.communicate(b"\n")


# Disks


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        (DISK, Severity.GOOD),
        (replace(DISK, free_bytes=10 * GIB), Severity.CARE),
        (replace(DISK, free_bytes=GIB), Severity.BAD),
        (replace(DISK, free_files_ratio=0.01), Severity.CARE),
        (replace(DISK, free_files_ratio=None), Severity.GOOD),
        (replace(DISK, kind="tmpfs"), Severity.BAD),
        (replace(DISK, kind="nfs4"), Severity.CARE),
        (replace(DISK, kind="fuse.sshfs"), Severity.CARE),
        (replace(DISK, kind="overlay"), Severity.CARE),
        (replace(DISK, is_read_only=True, fsync_seconds=None), Severity.BAD),
        (replace(DISK, is_writable=False, fsync_seconds=None), Severity.NOTE),
        (replace(DISK, exists=False), Severity.NOTE),
        (replace(DISK, fsync_seconds=0.05), Severity.NOTE),
        (replace(DISK, fsync_seconds=0.5), Severity.CARE),
    ],
)
def test_disks(facts: DiskFacts, severity: Severity) -> None:
    assert worst(disk_findings(facts)) is severity
    serious(disk_findings(facts))


def test_the_file_system_is_that_of_the_deepest_mount() -> None:
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 8:2 / /data rw,noatime shared:1 - xfs /dev/sdb1 rw\n"
        "31 22 8:3 / /data\\040two rw - btrfs /dev/sdc1 rw\n"
    )
    assert file_system_of(Path("/data/node-1"), mounts) == "xfs"
    assert file_system_of(Path("/database"), mounts) == "ext4"
    assert file_system_of(Path("/data two/x"), mounts) == "btrfs"
    assert file_system_of(Path("/"), "") == ""


def test_an_fsync_is_measured_without_leaving_a_file(tmp_path: Path) -> None:
    facts = read_disk(str(tmp_path / "not" / "there"))
    assert facts.exists is False
    assert facts.is_writable
    assert facts.fsync_seconds is not None and facts.fsync_seconds > 0
    assert list(tmp_path.iterdir()) == []


# Software


def test_requirements_of_extras_are_left_out() -> None:
    texts = ["uvloop>=0.21", "typer (<0.29,>=0.16)", 'psutil>=6; extra == "bench"', "a[b]>=1"]
    assert list(needed(texts)) == [("uvloop", ">=0.21"), ("typer", "<0.29,>=0.16"), ("a", ">=1")]


@pytest.mark.parametrize(
    ("found", "bounds", "is_met"),
    [
        ("0.28.0", ">=0.16,<0.29", True),
        ("0.29", ">=0.16,<0.29", False),
        ("1.10", ">=1.9", True),
        ("2.9.post0", ">=2.7", True),
        ("2.7", ">=2.7.0", True),
        ("1", "", True),
        ("3", "!=3", False),
    ],
)
def test_versions_are_compared_by_numbers(found: str, bounds: str, is_met: bool) -> None:
    assert satisfies(found, bounds) is is_met


def test_old_and_missing_packages_are_found() -> None:
    facts = SoftwareFacts(
        riverrun="0.1.0",
        python=(3, 12, 1),
        has_assertions=True,
        requirements=("a>=2", "b"),
        installed={"a": "1.9"},
    )
    found = software_findings(facts)
    assert [one.severity for one in found] == [Severity.CARE, Severity.BAD]
    assert worst(iter(software_findings(replace(facts, python=(3, 10, 2))))) is Severity.BAD
    assert worst(iter(software_findings(replace(facts, has_assertions=False)))) is Severity.BAD


def test_this_installation_fits() -> None:
    assert worst(iter(software_findings(read_software()))) is Severity.GOOD


# Ports


@pytest.mark.parametrize(
    ("use", "process", "severity"),
    [
        (PortUse.FREE, None, Severity.GOOD),
        (PortUse.FREE, 7, Severity.CARE),
        (PortUse.OURS, 7, Severity.GOOD),
        (PortUse.UNKNOWN, 7, Severity.NOTE),
        (PortUse.OTHER, None, Severity.BAD),
    ],
)
def test_ports(use: PortUse, process: int | None, severity: Severity) -> None:
    facts = NetworkFacts(
        uses=[("127.0.0.1:9092", use)], process=process, unknown_names=(), silent_seeds=()
    )
    assert worst(network_findings(facts)) is severity


def test_a_port_of_another_process_is_told_from_our_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own = read_network([("127.0.0.1", port)], process=os.getpid(), advertised=(), seeds=())
        other = read_network([("127.0.0.1", port)], process=None, advertised=(), seeds=())
        init = read_network([("127.0.0.1", port)], process=1, advertised=(), seeds=())
    assert own.uses[0][1] is PortUse.OURS
    assert other.uses[0][1] is PortUse.OTHER
    assert init.uses[0][1] in (PortUse.OTHER, PortUse.UNKNOWN)


def test_names_and_seeds_that_do_not_respond_are_found() -> None:
    port = free_ports(1)
    facts = read_network(
        [], process=None, advertised=["nobody.invalid", "localhost"], seeds=[("127.0.0.1", port)]
    )
    assert facts.unknown_names == ["nobody.invalid"]
    assert facts.silent_seeds == [f"127.0.0.1:{port}"]


def test_the_table_of_sockets_is_read() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 555 1\n"
        "   1: 0100007F:2384 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 556 1\n"
    )
    assert listening_sockets(table) == {9092: {555}}


# Settings


@pytest.mark.parametrize(
    ("changed", "nodes", "severity"),
    [
        ({}, 3, Severity.GOOD),
        ({"default.replication.factor": "1", "min.insync.replicas": "1"}, 3, Severity.CARE),
        (dict.fromkeys(SAFE, "1"), 1, Severity.GOOD),
        ({"min.insync.replicas": "1"}, 3, Severity.CARE),
        ({"min.insync.replicas": "3"}, 3, Severity.CARE),
        ({"offsets.topic.replication.factor": "1"}, 3, Severity.CARE),
        ({"unclean.leader.election.enable": "true"}, 3, Severity.CARE),
        ({"auto.create.topics.enable": "true"}, 3, Severity.NOTE),
    ],
)
def test_risky_settings(changed: dict[str, str], nodes: int, severity: Severity) -> None:
    assert worst(setting_findings({**SAFE, **changed}, nodes)) is severity
    serious(setting_findings({**SAFE, **changed}, nodes))


def test_open_listeners_and_missing_administrators() -> None:
    def found(host: str, protocol: str, *, rights: bool, users: str = "") -> Severity:
        listeners = {"A": (host, protocol)}
        return worst(listener_findings(listeners, has_authorizer=rights, super_users=users))

    assert found("0.0.0.0", "PLAINTEXT", rights=False) is Severity.NOTE
    assert found("127.0.0.1", "PLAINTEXT", rights=False) is Severity.GOOD
    assert found("0.0.0.0", "SASL_SSL", rights=False) is Severity.GOOD
    assert found("0.0.0.0", "SSL", rights=True, users="User:a") is Severity.GOOD
    assert found("0.0.0.0", "SSL", rights=True) is Severity.CARE


# Certificates


@pytest.mark.parametrize(
    ("hosts", "wanted", "is_named"),
    [
        (["node1"], "NODE1", True),
        (["node1"], "node2", False),
        (["*.example.com"], "node1.example.com", True),
        (["*.example.com"], "a.b.example.com", False),
        (["*.example.com"], "example.com", False),
        (["10.0.0.1"], "10.0.0.1", True),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["node1"], "10.0.0.1", False),
    ],
)
def test_host_names_are_checked_as_clients_do(
    hosts: list[str], wanted: str, is_named: bool
) -> None:
    assert names_host(hosts, wanted) is is_named


def issued(folder: Path, *, hosts: list[str], days: int = 365) -> TlsSettings:
    authority = Authority.create(folder, name="test")
    authority.issue(folder / "node.pem", name="node", hosts=hosts, days=days)
    return TlsSettings(
        keystore_location=str(folder / "node.pem"),
        truststore_location=str(authority.certificate_path),
    )


def certificate(settings: TlsSettings, host: str = "node1", now: float | None = None) -> Any:
    return read_certificate("SSL", settings, host, now)


def test_a_sound_certificate(tmp_path: Path) -> None:
    facts: CertificateFacts = certificate(issued(tmp_path, hosts=["node1"]))
    assert worst(certificate_findings(facts)) is Severity.GOOD
    assert facts.is_trusted is True


def test_a_certificate_for_other_hosts_that_expires_soon(tmp_path: Path) -> None:
    settings = issued(tmp_path, hosts=["node2"], days=10)
    expires, hosts = serious(certificate_findings(certificate(settings)))
    assert "expires in 9 days" in expires
    assert "is for node2, but clients connect to node1" in hosts


def test_an_expired_certificate(tmp_path: Path) -> None:
    settings = issued(tmp_path, hosts=["node1"])
    facts = certificate(settings)
    assert facts.expires_seconds is not None
    late = replace(facts, expires_seconds=facts.expires_seconds - 366 * DAY_SECONDS)
    assert worst(certificate_findings(late)) is Severity.BAD


def test_a_certificate_with_another_key(tmp_path: Path) -> None:
    settings = issued(tmp_path, hosts=["node1"])
    Authority(tmp_path).issue(tmp_path / "other.pem", name="other", hosts=["node1"])
    node, other = (tmp_path / name for name in ("node.pem", "other.pem"))
    key = other.read_text().partition("-----BEGIN CERTIFICATE-----")[0]
    rest = node.read_text().partition("-----BEGIN CERTIFICATE-----")
    node.write_text(key + rest[1] + rest[2])
    [text] = serious(certificate_findings(certificate(settings)))
    assert "not a valid PEM key or certificate" in text


def test_a_certificate_of_a_foreign_authority(tmp_path: Path) -> None:
    settings = issued(tmp_path / "one", hosts=["node1"])
    Authority.create(tmp_path / "two", name="foreign")
    changed = TlsSettings(
        keystore_location=settings.keystore_location,
        truststore_location=str(tmp_path / "two" / "ca.pem"),
    )
    [text] = serious(certificate_findings(certificate(changed)))
    assert "is not signed by an authority" in text


# The cluster


def with_node(number: int, **changed: Any) -> ClusterFacts:
    nodes = [replace(one, **changed) if one.node == number else one for one in NODES]
    return replace(CLUSTER, nodes=nodes)


@pytest.mark.parametrize(
    ("facts", "severity", "text"),
    [
        (CLUSTER, Severity.GOOD, None),
        (replace(CLUSTER, problems=["2 partitions without a leader"]), Severity.BAD, "2 part"),
        (replace(CLUSTER, voters=1), Severity.CARE, "one voter for 3 nodes"),
        (replace(CLUSTER, voters=4), Severity.NOTE, "4 voters"),
        (replace(CLUSTER, single_replicas=["t"]), Severity.CARE, "1 topic with one replica: t"),
        (with_node(2, rack="a"), Severity.CARE, "nodes 1, 3 have no rack"),
        (with_node(2, metrics=None), Severity.NOTE, "the metrics of node 2 cannot be read"),
        (
            with_node(2, metrics=replace(METRICS, version="2.0")),
            Severity.CARE,
            "different versions: 1.0 on 1, 3; 2.0 on 2",
        ),
        (
            with_node(3, metrics=replace(METRICS, clock_ahead_seconds=-3.0)),
            Severity.CARE,
            "at least 3.0 s ahead of node 3",
        ),
        (
            with_node(3, metrics=replace(METRICS, clock_ahead_seconds=3.0, clock_error_seconds=4)),
            Severity.GOOD,
            None,
        ),
        (
            with_node(3, metrics=replace(METRICS, certificates={"SSL": 100.0})),
            Severity.CARE,
            "the certificate of SSL on node 3 expires in 0 days",
        ),
        (
            with_node(3, settings={**SAFE, "min.insync.replicas": "1"}),
            Severity.CARE,
            "min.insync.replicas differs: 2 on 1, 2; 1 on 3",
        ),
    ],
)
def test_a_cluster(facts: ClusterFacts, severity: Severity, text: str | None) -> None:
    assert worst(cluster_findings(facts)) is severity
    found = serious(cluster_findings(facts))
    assert any(text in one for one in found) if text is not None else found == []


def test_a_clock_of_this_machine_that_is_wrong_blames_no_node() -> None:
    late = replace(METRICS, clock_ahead_seconds=60.0)
    facts = replace(CLUSTER, nodes=[replace(one, metrics=late) for one in NODES])
    [text] = serious(cluster_findings(facts))
    assert "the clock of this machine differs from all nodes by at least 60.0 s" in text


def test_metrics_are_parsed() -> None:
    text = (
        "# HELP riverrun_clock_seconds x\n"
        "riverrun_clock_seconds 1000.5\n"
        'riverrun_build_info{python="3.13.0",version="0.2.0"} 1.0\n'
        'riverrun_certificate_expiry_seconds{of="SSL"} 3.6e+03\n'
    )
    assert parse_metrics(text, now=1000.0, error_seconds=0.1) == NodeMetrics(
        version="0.2.0",
        clock_ahead_seconds=0.5,
        clock_error_seconds=0.1,
        certificates={"SSL": 3600.0},
    )
    empty = parse_metrics("kafka 1\n", now=0.0, error_seconds=0.0)
    assert (empty.version, empty.clock_ahead_seconds) == (None, None)


# The report


def test_serious_findings_come_first_and_decide_the_verdict() -> None:
    findings = [
        Finding(severity=severity, check="x", text=severity.value, remedy="do")
        for severity in Severity
    ]
    assert [row[0] for row in findings_table(findings).rows] == ["bad", "care", "note", "good"]
    assert verdict(findings) == "2 findings of 4 need care."
    assert verdict(findings[:2]) == "2 findings, and none needs care."


# Real nodes


def doctor(*words: str, code: int | None = None, **variables: str) -> Any:
    arguments = ["doctor", *words, "--json"]
    result = CliRunner().invoke(build(arguments), arguments, env=variables)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert code in (None, result.exit_code), result.output
    return json.loads(result.stdout)


def by_check(report: Any, check: str) -> list[Any]:
    return [one for one in report["findings"] if one["check"] == check]


def test_a_running_node_serves_its_ports_and_its_cluster(node: Riverrun, cli: Cli) -> None:
    report = doctor("--config", str(node.config))
    assert {one["severity"] for one in by_check(report, "ports")} == {"good"}
    assert len(by_check(report, "ports")) == 3
    assert by_check(report, "versions")[0]["severity"] == "good"
    assert by_check(report, "cluster")[0]["text"].startswith("1 node")
    is_good = all(one["severity"] in ("good", "note") for one in report["findings"])
    assert report["good"] is is_good
    code = 0 if is_good else 1
    assert cli.done("doctor", "--config", str(node.config)).returncode == code


def test_a_cluster_that_does_not_respond_is_a_finding() -> None:
    report = doctor("--bootstrap", f"127.0.0.1:{free_ports(1)}", code=1)
    [finding] = by_check(report, "cluster")
    assert finding["severity"] == "bad"
    assert "cannot be asked" in finding["text"]


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("no.such.setting = 1\n")
    arguments = ["doctor", "--config", str(path)]
    result = CliRunner().invoke(build(arguments), arguments)
    assert result.exit_code == 2
    assert "unknown setting" in result.output


def test_a_node_that_is_not_started_with_a_port_in_use(tmp_path: Path) -> None:
    port = free_ports(3)
    path = tmp_path / "node.toml"
    path.write_text(
        f'node.id = 1\nlog.dirs = "{tmp_path / "data"}"\n'
        f'listeners = "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}"\n'
        f'http.listener = "127.0.0.1:{port + 2}"\nunclean.leader.election.enable = true\n'
    )
    with socket.create_server(("127.0.0.1", port + 2)):
        report = doctor("--config", str(path), code=1)
    states = [one["severity"] for one in by_check(report, "ports")]
    assert states == ["good", "good", "bad"]
    assert "unclean" in by_check(report, "settings")[0]["text"]
    assert any("does not exist yet" in one["text"] for one in by_check(report, "disk"))


def test_the_brokers_of_a_host_are_checked_one_by_one(tmp_path: Path) -> None:
    port = free_ports(20)
    path = tmp_path / "node.toml"
    path.write_text(
        f'node.id = 1\nprocesses = 2\nlog.dirs = "{tmp_path / "data"}"\n'
        f'listeners = "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}"\n'
        f'http.listener = "127.0.0.1:{port + 2}"\n'
    )
    report = doctor("--config", str(path))
    assert [one["severity"] for one in by_check(report, "ports")] == ["good"] * 5


@pytest.mark.slow
def test_a_secure_cluster(tmp_path: Path) -> None:
    secure = SecureNode(tmp_path / "data")
    try:
        config = secure.told["nodes"][0]["config"]
        report = json.loads(secure.run("doctor", "--config", config, "--json").stdout)
        expired = {"RIVERRUN_SASL_PASSWORD": "wrong"}
        refused = json.loads(secure.run("doctor", "--json", environment=expired).stdout)
    finally:
        secure.stop()
    assert len(by_check(report, "certificates")) >= 6  # of the file, and of the cluster
    assert {one["severity"] for one in by_check(report, "certificates")} == {"good"}
    assert by_check(report, "cluster")[0]["severity"] == "good"
    [login] = by_check(refused, "cluster")
    assert (login["severity"], "login" in login["text"]) == ("bad", True)
