"""riverrun cluster config, elect-leaders and logdirs, against real nodes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.admin.cluster.configs import BrokerSetting, SettingsReport, merged, settings_table
from riverrun.admin.cluster.elections import planned
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.metadata_response import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.cli.commands import Cli
from tests.cli.test_cluster import asked, create_with_replicas, register
from tests.processes import Server, free_ports, serve, until

SETTING = "log.retention.bytes"


def settings(cli: Cli, *words: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(cli.run("cluster", "config", "get", *words, "--json"))
    return {row["name"]: row for row in rows}


@pytest.fixture
def unset(cli: Cli) -> Iterator[None]:
    """Removes the settings of a test."""
    yield
    cli.run("cluster", "config", "unset", SETTING)
    cli.run("cluster", "config", "unset", SETTING, "--node", "1")


@pytest.mark.usefixtures("unset")
def test_a_setting_of_the_cluster_is_set_shown_and_unset(cli: Cli) -> None:
    config = ["cluster", "config"]
    assert settings(cli, SETTING)[SETTING]["source"] == "default"
    assert cli.run(*config, "set", f"{SETTING}=1000000") == f"{SETTING} = 1000000 for the cluster\n"
    until(lambda: SETTING in settings(cli), seconds=20, what="it is changed at run time")
    (row,) = [row for row in cli.rows(*config, "get") if row[0] == SETTING]
    assert row == [SETTING, "1000000", "cluster, at run time", "all", "-1", "no"]

    done = json.loads(cli.run(*config, "set", f"{SETTING}=2000000", "--node", "1", "--json"))
    assert done == {"node": 1, "settings": {SETTING: "2000000"}, "executed": True}
    until(
        lambda: settings(cli, SETTING)[SETTING]["value"] == "2000000",
        seconds=20,
        what="the node's own setting takes precedence",
    )
    assert settings(cli, SETTING)[SETTING]["source"] == "node, at run time"

    cli.run(*config, "unset", SETTING, "--node", "1")
    until(
        lambda: settings(cli, SETTING)[SETTING]["value"] == "1000000",
        seconds=20,
        what="the cluster's setting applies again",
    )
    assert cli.run(*config, "unset", SETTING) == f"{SETTING} is no longer set for the cluster\n"
    until(lambda: SETTING not in settings(cli), seconds=20, what="the default applies again")
    assert cli.run(*config, "unset", SETTING) == f"{SETTING} was not set for the cluster\n"


def test_a_dry_run_validates_and_changes_nothing(cli: Cli) -> None:
    words = ["cluster", "config", "set", "--dry-run"]
    assert "Nothing was changed." in cli.run(*words, f"{SETTING}=5")
    assert settings(cli, SETTING)[SETTING]["source"] == "default"
    refused = cli.result(*words, f"{SETTING}=many")
    assert refused.exit_code == 1
    assert f"Invalid value many for configuration {SETTING}" in refused.stderr


def test_the_settings_of_a_node_come_from_its_file_or_are_defaults(cli: Cli, node: Server) -> None:
    own = settings(cli, "--node", "1")
    assert own["log.dirs"]["value"] == str(node.data)
    assert own["log.dirs"]["source"] == "node, from its file"
    assert own["log.dirs"]["read_only"] is True
    assert all(row["source"] != "default" for row in own.values())
    everything = settings(cli, "--node", "1", "--all")
    assert everything["num.partitions"]["default"] == "1"
    assert "partitions" in everything["num.partitions"]["documentation"]
    assert len(everything) > len(own)


@pytest.mark.parametrize(
    ("words", "code", "saying"),
    [
        (["get", "min.insync.replica"], 4, "did you mean min.insync.replicas?"),
        (["get", "--node", "77"], 4, "broker 77 does not exist"),
        (["set", "min.insync.replica=2"], 4, "did you mean min.insync.replicas?"),
        (["set", "min.insync.replicas"], 2, "expected NAME=VALUE, for example num.partitions=3"),
        (["set", "num.partitions=3"], 1, "Remedy: set num.partitions in the file of each node"),
        (["set", "a=1", "--node", "77"], 4, "broker 77 does not exist"),
    ],
)
def test_mistakes_are_explained(cli: Cli, words: list[str], code: int, saying: str) -> None:
    result = cli.result("cluster", "config", *words)
    assert result.exit_code == code, result.output
    assert saying in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_more_in_sync_replicas_than_brokers_are_a_warning(cli: Cli) -> None:
    words = ("cluster", "config", "set", "--dry-run")
    done = cli.result(*words, "min.insync.replicas=99")
    assert done.exit_code == 0, done.stderr
    assert "warning: min.insync.replicas=99 is more than the number of brokers (1):" in done.stderr
    assert cli.result(*words, "min.insync.replicas=1").stderr == ""


def test_elr_explains_how_min_insync_replicas_changes(cli: Cli) -> None:
    config, setting = ("cluster", "config"), "min.insync.replicas"
    cli.run(*config, "set", f"{setting}=1")
    until(lambda: setting in settings(cli), seconds=20, what="it is changed at run time")
    for words, remedy in (
        (("unset", setting), f"`riverrun cluster config set {setting}=1`"),
        (("set", f"{setting}=2", "--node", "1"), "without --node"),
    ):
        done = cli.result(*config, *words)
        assert done.exit_code == 1
        assert remedy in done.stderr.partition("Remedy:")[2]


@pytest.mark.parametrize("name", ["log.retention.hours", "log.retention.ms"])
def test_value_out_of_range_is_reported_as_such(cli: Cli, name: str) -> None:
    done = cli.result("cluster", "config", "set", f"{name}={'9' * 25}")
    assert done.exit_code == 1
    assert f"{name}={'9' * 25} is out of range: it is at most" in done.stderr
    assert "file" not in done.stderr


def test_names_of_settings_are_completed_from_the_cluster(cli: Cli) -> None:
    env = {
        **cli.env,
        "_RIVERRUN_COMPLETE": "complete_bash",
        "COMP_WORDS": "riverrun cluster config set min.insync",
        "COMP_CWORD": "4",
    }
    done = subprocess.run([cli.executable], env=env, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().split() == ["min.insync.replicas"]


def setting(node: int, value: str | None, **fields: Any) -> BrokerSetting:
    known: dict[str, Any] = {
        "name": "a", "source": 4, "default": None, "is_read_only": False, "is_sensitive": False,
        "type": "string", "documentation": None, "sources": frozenset({4}), **fields,
    }  # fmt: skip
    return BrokerSetting(value=value, nodes=(node,), **known)


def test_equal_values_of_nodes_are_one_row() -> None:
    rows = merged([setting(1, "x"), setting(2, "y"), setting(3, "x")])
    assert [(row.value, row.nodes) for row in rows] == [("x", (1, 3)), ("y", (2,))]


def test_a_value_of_the_cluster_is_one_row_after_a_node_joined(tmp_path: Path) -> None:
    """The first node has another value in its file, and the second one has none."""
    with serve(tmp_path / "first", {SETTING: "5000000"}) as first:
        cli = Cli(first.bootstrap)
        cli.run("cluster", "config", "set", f"{SETTING}=1000000")
        host, port = first.address
        words = ["--node-id", "2", "--data", str(tmp_path / "second")]
        words += ["--advertised-addr", f"{host}:{free_ports(3)}"]
        with cli.started("start", *words, "--seed-nodes", f"{host}:{port + 1}"):
            until(lambda: len(cli.rows("cluster", "nodes")) == 2, seconds=60, what="node 2 joined")

            def changed() -> list[list[str]]:
                rows = cli.rows("cluster", "config", "get")
                return [row[:4] for row in rows if row[0] == SETTING]

            row = [SETTING, "1000000", "cluster, at run time"]
            until(lambda: changed()[0][:3] == row, seconds=30, what="both have the value")
            assert changed() == [[*row, "all"]]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("listener.name.plaintext.max.connections", 0),
        ("listener.name.plaintext.max.conections", 4),
        ("listener.name.max.connections", 4),
        ("listener.plaintext.max.connections", 4),
        ("listener.name.plaintext.plain.sasl.jaas.config", 1),  # the node refuses the value
    ],
)
def test_a_setting_of_one_listener_is_known(cli: Cli, name: str, code: int) -> None:
    words = ["cluster", "config", "set", "--node", "1", "--dry-run", f"{name}=1000"]
    assert cli.result(*words).exit_code == code


def test_secrets_are_hidden() -> None:
    rows = (setting(1, None, is_sensitive=True), setting(1, None))
    shown = settings_table(SettingsReport(rows=rows)).rows
    assert [row[1] for row in shown] == ["(hidden)", None]


def test_directories_have_size_and_free_space(cli: Cli, node: Server, name: str) -> None:
    cli.write(name, "hello\n")
    (row,) = cli.rows("cluster", "logdirs")
    assert row[:3] == ["1", str(node.data), "online"]
    partitions, size, free, total = map(int, row[3:])
    assert partitions > 0
    assert 0 < size < total
    assert 0 < free < total
    (directory,) = json.loads(cli.run("cluster", "logdirs", "--node", "1", "--json"))
    sizes = {(one["topic"], one["partition"]): one["size_bytes"] for one in directory["partitions"]}
    assert sizes[name, 0] > len("hello")
    assert cli.result("cluster", "logdirs", "--node", "77").exit_code == 4


def test_an_election_that_fails_is_explained(cli: Cli, node: Server, name: str) -> None:
    """The preferred replica of the partition is on a broker that does not run."""
    register(node, 9, asked(cli, "cluster", "status")["cluster_id"])
    create_with_replicas(node, name, 9, 1)
    try:
        words = ["cluster", "elect-leaders", "--topic", f"{name}:0"]
        failed = cli.result(*words, "--no-headers")
        assert failed.exit_code == 1
        assert failed.stdout.split("\t")[:5] == [name, "0", "1", "1", "9"]
        assert "The preferred leader was not available." in failed.stdout
        assert "1 election failed" in failed.stderr
        (row,) = json.loads(cli.run(*words, "--json", code=1))
        assert (row["leader"], row["preferred"]) == (1, 9)
    finally:
        cli.run("topics", "delete", name, "--yes")
        cli.run("cluster", "unregister", "9", "--yes")


def test_nothing_is_elected_where_leaders_are_right(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    words = ["cluster", "elect-leaders", "--topic", name]
    assert cli.run(*words) == ("Nothing to elect in 2 partitions: the preferred replicas lead.\n")
    assert cli.run(*words, "--unclean") == (
        "Nothing to elect in 2 partitions: every partition has a leader.\n"
    )
    assert cli.run(*words, "--json") == "[]\n"
    assert cli.result("cluster", "elect-leaders", "--topic", "nosuch").exit_code == 4
    assert cli.result("cluster", "elect-leaders", "--topic", f"{name}:7").exit_code == 4


def partition(index: int, leader: int, replicas: tuple[int, ...]) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE, partition_index=index, leader_id=leader,
        replica_nodes=replicas, isr_nodes=replicas, offline_replicas=(),
    )  # fmt: skip


@pytest.mark.parametrize(("is_unclean", "places"), [(False, ["t-1", "t-2"]), (True, ["t-2"])])
def test_elections_are_planned_where_they_are_needed(is_unclean: bool, places: list[str]) -> None:
    rows = (partition(0, 1, (1, 2)), partition(1, 1, (2, 1)), partition(2, -1, (2, 3)))
    topic = MetadataResponseTopic(error_code=ErrorCode.NONE, name="t", partitions=rows)
    plan = planned([topic], {}, is_unclean=is_unclean)
    assert [str(change.partition) for change in plan.changes] == places
    assert plan.partition_count == 3
    only = planned([topic], {"t": frozenset({0, 1})}, is_unclean=is_unclean)
    assert [str(change.partition) for change in only.changes] == [
        place for place in places if place != "t-2"
    ]
