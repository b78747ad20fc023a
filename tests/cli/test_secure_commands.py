"""Every group of commands works against `up --secure`, with the file that it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.cli.support.client_config import ClusterAddress, login_of, with_addresses
from tests.compatibility.apache import ApacheTools
from tests.secure_node import SecureNode

COMMANDS = (
    ("topics describe orders", "orders"),
    ("topics trim orders --before 1 --yes", "orders"),
    ("topics move orders --to 1 --yes", "Nothing to move"),
    ("consume orders --from-beginning --max-messages 1", "second"),
    ("consume orders --group readers --from-beginning --max-messages 1", "second"),
    ("groups list", "readers"),
    ("groups reset-offsets readers --topic orders --to-earliest", "orders"),
    ("transactions list", ""),
    ("transactions hanging", ""),
    ("cluster status", "healthy"),
    ("cluster config get num.partitions", "num.partitions"),
    ("cluster elect-leaders", ""),
    ("cluster balance --dry-run", ""),
    ("cluster moves", ""),
    ("quorum status", "leader"),
    ("quorum add 1 --print-properties", "node.id=1"),
    ("quorum add 1 --print-properties", "CONTROLLER:SSL"),
    ("top --once", "orders"),
    ("users list", "admin"),
    ("acls add --user reader --operation Read --topic orders", "reader"),
    ("acls list", "reader"),
    ("bench produce --megabytes 1 --rounds 1", "MB/s"),
    ("bench produce --megabytes 1 --rounds 1 --connections 2", "MB/s"),
    ("bench consume --megabytes 1 --rounds 1", "MB/s"),
    ("bench end-to-end --seconds 1 --rate 100", "p99"),
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    made = SecureNode(tmp_path_factory.mktemp("secure") / "data")
    assert made.run("topics", "create", "orders").returncode == 0
    assert made.run("produce", "orders", given="first\nsecond\n").returncode == 0
    yield made
    assert made.stop() == 0


@pytest.mark.parametrize(("line", "shown"), COMMANDS, ids=[": ".join(each) for each in COMMANDS])
def test_command_logs_in(node: SecureNode, line: str, shown: str) -> None:
    done = node.run(*line.split())
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert node.security["password"] not in done.stdout + done.stderr


@pytest.mark.peer
def test_printed_properties_work_with_apaches_tool(tmp_path: Path) -> None:
    """By the controller listener as they are, and by the client listener with a user's login."""
    cluster = SecureNode(tmp_path / "data", nodes=3)
    tools = ApacheTools(tmp_path)
    try:
        printed = cluster.run("quorum", "add", "3", "--print-properties").stdout
        own = [line for line in printed.splitlines() if not line.startswith("#")]
        at = own.index("security.protocol=SSL")
        login = Path(cluster.security["properties"]).read_text()
        host, _, port = cluster.told["nodes"][0]["client"].rpartition(":")
        for name, text, address in (
            ("node", printed, ("--bootstrap-controller", f"{host}:{int(port) + 1}")),
            ("user", "\n".join([*own[:at], login]), ("--bootstrap-server", f"{host}:{port}")),
        ):
            assert cluster.run("quorum", "remove", "3", "--yes").returncode == 0
            (tmp_path / name).write_text(text)
            words = (*address, "--command-config", tmp_path / name, "add-controller")
            added = tools.run("MetadataQuorumCommand", *words).check().text
            assert "Added controller 3 with directory id" in added
    finally:
        tools.close()
        assert cluster.stop() == 0


def test_shell_completes_names_of_a_secure_cluster(node: SecureNode) -> None:
    line = "riverrun topics describe ord"
    environment = {
        **os.environ,
        "RIVERRUN_BOOTSTRAP": node.bootstrap,
        "RIVERRUN_COMMAND_CONFIG": node.security["properties"],
        "_RIVERRUN_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "riverrun")],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["orders"]


def test_benchmark_explains_invalid_settings(node: SecureNode) -> None:
    variables = {"RIVERRUN_SASL_MECHANISM": "nonsense"}
    done = node.run("bench", "produce", "--megabytes", "1", environment=variables)
    assert done.returncode == 1
    assert "--command-config: Invalid value NONSENSE for configuration sasl.mech" in done.stderr
    assert node.security["password"] not in done.stderr


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
def test_wrong_protocol_is_explained(node: SecureNode, protocol: str) -> None:
    done = node.run("topics", "list", environment={"RIVERRUN_SECURITY_PROTOCOL": protocol})
    assert done.returncode == 3
    assert f"connections that it does not expect, such as {protocol}" in done.stderr
    assert "--command-config FILE" in done.stderr


def test_command_without_a_login_is_told_of_the_file(node: SecureNode) -> None:
    done = node.run("topics", "list", environment={"RIVERRUN_COMMAND_CONFIG": ""})
    assert done.returncode == 3
    assert "--command-config FILE" in done.stderr


def test_missing_file_of_the_login_is_a_usage_error(node: SecureNode) -> None:
    done = node.run("topics", "list", "--command-config", "missing.properties")
    assert done.returncode == 2
    assert "--command-config: cannot read missing.properties" in done.stderr


def test_missing_right_names_the_remedy(node: SecureNode) -> None:
    assert node.run("users", "add", "eve", "--password-file", "-", given="secret").returncode == 0
    login = {"RIVERRUN_SASL_USERNAME": "eve", "RIVERRUN_SASL_PASSWORD": "secret"}
    for words, code in (
        ("topics describe orders", "TOPIC_AUTHORIZATION_FAILED"),
        ("cluster config set num.partitions=2", "CLUSTER_AUTHORIZATION_FAILED"),
    ):
        done = node.run(*words.split(), environment=login)
        assert done.returncode == 1
        assert code in done.stderr
        assert "`riverrun acls add`" in done.stderr


def test_addresses_that_a_watch_adds_keep_the_login() -> None:
    login = {"security.protocol": "SSL"}
    given = ClusterAddress.of("a:1,b:1", properties=login, context="here")
    wider = with_addresses(given, ["b:1", "c:1"])
    assert wider == "a:1,b:1,c:1"
    assert login_of(wider) == login
    assert wider.context == "here"
    assert with_addresses("a:1", ["b:1"]) == "a:1,b:1"
