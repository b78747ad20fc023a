"""`riverrun up`: the settings file of a node survives failures."""

import json
import os
import signal
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from riverrun.cli.main import build
from riverrun.cli.up.command import AUTO_JOIN, OF_EACH_NODE, _environment, _environments
from riverrun.cli.up.files import NodeFiles, plan, prepare_first_start, voters_of, write_draft
from riverrun.cli.up.messages import ourselves
from riverrun.cli.up.ports import held_free_ports
from riverrun.model.setting_names import flattened
from riverrun.server.formation.promise import withdraw
from tests.cli.commands import Cli
from tests.processes import Server, executable, free_ports, until

SECONDS_MAX = 60


def prepare(data: Path, port: int = 9092, nodes: int = 1, **flags: str) -> NodeFiles:
    """The draft of the last of several nodes."""
    cluster = plan(data, nodes, port)
    write_draft(cluster[-1], cluster, {n.replace("_", "."): text for n, text in flags.items()})
    return cluster[-1]


def settings_in(path: Path) -> dict[str, object]:
    return flattened(tomllib.loads(path.read_text()))


def run(data: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [executable(), "up", "--data", str(data), *words],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def test_settings_are_a_draft_until_the_node_is_ready(tmp_path: Path) -> None:
    node = prepare(tmp_path, num_partitions="3")
    assert not node.config.exists()
    assert settings_in(node.draft) == {
        "node.id": 1,
        "log.dirs": str(tmp_path / "node-1"),
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "http.listener": "127.0.0.1:9094",
        "num.partitions": "3",
        "group.initial.rebalance.delay.ms": 0,
    }


def test_groups_do_not_wait_before_their_first_rebalance(tmp_path: Path) -> None:
    name = "group.initial.rebalance.delay.ms"
    node = prepare(tmp_path)
    assert settings_in(node.draft)[name] == 0
    node.config.write_text(f"{name} = 7\n")
    assert settings_in(prepare(tmp_path).draft)[name] == 7
    flag = prepare(tmp_path, group_initial_rebalance_delay_ms="8")
    assert settings_in(flag.draft)[name] == "8"


def test_free_ports_are_reserved_until_the_nodes_listen() -> None:
    with held_free_ports(2) as first:
        for port in (first, first + 1, first + 2, first + 10, first + 12):
            with socket.socket() as another, pytest.raises(OSError, match="in use"):
                another.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                socket.create_connection(("127.0.0.1", port)).close()


def test_ephemeral_cluster_on_free_ports_leaves_nothing_behind(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1")
    cli.env["TMPDIR"] = str(tmp_path)
    words = ["--nodes", "1", "--port", "0", "--ephemeral", "--json"]
    with cli.started("up", *words) as first, cli.started("up", *words) as second:
        one, other = json.loads(first.line()), json.loads(second.line())
        assert one["bootstrap"] != other["bootstrap"]
        data = Path(one["nodes"][0]["data"])
        assert data.parent.parent == tmp_path
        assert (data / "meta.properties").exists()
        assert "healthy" in Cli(one["bootstrap"]).run("cluster", "status")
        assert first.stop(signal.SIGTERM) == 0
        assert second.stop(signal.SIGINT) == 0
    assert list(tmp_path.iterdir()) == []


def test_port_0_keeps_the_ports_of_existing_data(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1")
    seen = []
    for _ in range(2):
        with cli.started("up", "--port", "0", "--data", str(tmp_path), "--json") as up:
            seen.append(json.loads(up.line())["bootstrap"])
            assert up.stop() == 0
    assert seen[0] == seen[1]


def test_ephemeral_data_has_no_directory_of_the_users(tmp_path: Path) -> None:
    result = run(tmp_path, "--ephemeral")
    assert result.returncode == 2
    assert "--data is not used" in result.stderr


def test_several_nodes_get_seeds_and_replication(tmp_path: Path) -> None:
    values = settings_in(prepare(tmp_path, nodes=3).draft)
    assert values["listeners"] == "PLAINTEXT://127.0.0.1:9112,CONTROLLER://127.0.0.1:9113"
    assert values["seed.nodes"] == "127.0.0.1:9092,127.0.0.1:9102"
    assert values["default.replication.factor"] == 3
    assert values["offsets.topic.replication.factor"] == 3
    assert values["min.insync.replicas"] == 2
    assert "process.roles" not in values
    assert settings_in(prepare(tmp_path, nodes=6).draft)["process.roles"] == "broker"
    chosen = settings_in(prepare(tmp_path, nodes=3, min_insync_replicas="1").draft)
    assert chosen["min.insync.replicas"] == "1"


def test_an_odd_number_of_at_most_five_nodes_votes(tmp_path: Path) -> None:
    counts = [len(voters_of(plan(tmp_path, count, 9092))) for count in (1, 2, 3, 4, 5, 6, 9)]
    assert counts == [1, 2, 3, 3, 5, 5, 5]


def test_promises_of_blank_nodes_are_stored_before_their_start(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 3, 9092)
    assert prepare_first_start(cluster, "MkU3OEVBNTcwNTJENDM2Qg") == [n.data for n in cluster]
    assert prepare_first_start(cluster, None) == [], "they are not blank any more"
    promises = {(node.data / "formation.json").read_text() for node in cluster}
    assert len(promises) == 1
    assert '"agreed": true' in promises.pop()
    withdraw([node.data for node in cluster])
    assert list(tmp_path.iterdir()) == []


def test_a_used_promise_is_not_withdrawn(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 3, 9092)
    directories = prepare_first_start(cluster, None)
    (directories[1] / "__cluster_metadata-0").mkdir()
    withdraw(directories)
    assert all((path / "formation.json").exists() for path in directories)


def test_blank_nodes_beside_a_cluster_become_voters(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 3, 9092)
    cluster[0].data.mkdir()
    (cluster[0].data / "meta.properties").write_text("version=1\n")
    found = _environments(cluster, [])
    assert [AUTO_JOIN in found[number] for number in (1, 2, 3)] == [False, True, True]


def test_fewer_nodes_than_before_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_first_start(plan(tmp_path, 3, 9092), None)
    with pytest.raises(typer.Exit) as end:
        plan(tmp_path, 1, 9092)
    assert end.value.exit_code == 2
    assert "start them all with --nodes 3" in capsys.readouterr().err


def test_all_nodes_cannot_move_to_other_ports_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = plan(tmp_path, 3, 9092)
    for node in cluster:
        write_draft(node, cluster, {})
        node.draft.replace(node.config)
    prepare_first_start(cluster, None)
    assert len(plan(tmp_path, 3, 9092)) == 3
    with pytest.raises(typer.Exit):
        plan(tmp_path, 3, 19092)
    assert "use the same --port as before" in capsys.readouterr().err


def test_settings_added_by_hand_stay(tmp_path: Path) -> None:
    written = 'num.partitions = 4\nlog.flush.before.ack = true\n"log.retention.ms" = 5\n'
    (tmp_path / "node-1.toml").write_text(written)
    node = prepare(tmp_path, port=27200)
    values = settings_in(node.draft)
    assert (values["num.partitions"], values["log.flush.before.ack"]) == (4, True)
    assert (values["log.retention.ms"], values["http.listener"]) == (5, "127.0.0.1:27202")
    assert node.config.read_text() == written


def test_a_coarser_unit_replaces_the_finer_one_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "node-1.toml").write_text("log.retention.ms = 5\n")
    values = settings_in(prepare(tmp_path, log_retention_hours="2").draft)
    assert values["log.retention.hours"] == "2"
    assert "log.retention.ms" not in values


def test_a_broken_file_is_rejected_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node-1.toml").write_text("node.id = ")
    with pytest.raises(typer.Exit) as end:
        prepare(tmp_path)
    assert end.value.exit_code == 2
    assert "node-1.toml: not TOML" in capsys.readouterr().err


@pytest.mark.parametrize("name", OF_EACH_NODE)
def test_settings_chosen_by_up_cannot_be_set(name: str, tmp_path: Path) -> None:
    words = ["up", "--data", str(tmp_path / "data"), "--set", f"{name}=1"]
    result = CliRunner().invoke(build(words), words)
    assert result.exit_code == 2
    assert f"--set {name}: use --port and --data, or riverrun start" in result.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("foo=1", "unknown setting; `riverrun docs settings` lists them"),
        ("num.partition=1", "unknown setting; did you mean num.partitions?"),
        ("num.partitions=many", "Not a number of type INT"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--detach",)])
def test_wrong_setting_is_reported_once_and_leaves_no_directory(
    tmp_path: Path, setting: str, reason: str, more: tuple[str, ...]
) -> None:
    done = run(tmp_path / "data", "--port", str(free_ports(23)), "--set", setting, *more)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("riverrun: --set: ")
    assert reason in line
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_setting_leaves_the_file_unchanged(tmp_path: Path) -> None:
    written = "num.partitions = 4\n"
    (tmp_path / "node-1.toml").write_text(written)
    done = run(tmp_path, "--port", str(free_ports(23)), "--set", "num.partition=5")
    assert done.returncode == 2
    assert "did you mean num.partitions?" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-1.toml"]
    assert (tmp_path / "node-1.toml").read_text() == written


def test_a_running_node_keeps_its_file(supervised_node: Server) -> None:
    data = supervised_node.data.parent
    config = data / "node-1.toml"
    written = config.read_text()
    port = str(free_ports(3))
    done = run(data, "--nodes", "1", "--port", port, "--set", "num.partitions=5")
    assert done.returncode == 2
    assert f"a cluster runs already with {data}" in done.stderr
    assert config.read_text() == written
    assert not (data / "node-1.toml.starting").exists()


def test_flags_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOG_RETENTION_HOURS", "LISTENERS", "NUM_PARTITIONS", "ADVERTISED_LISTENERS"):
        monkeypatch.setenv(f"RIVERRUN_{name}", "x")
    found = _environment({"log.retention.ms": "5"})
    assert [name for name in sorted(found) if found[name] == "x"] == [
        "RIVERRUN_ADVERTISED_LISTENERS",
        "RIVERRUN_NUM_PARTITIONS",
    ]
    assert "PATH" in found


def test_the_program_is_named_as_the_user_can_call_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(Path(executable()).parent.parent)
    assert ourselves() == "bin/riverrun"
    monkeypatch.chdir(tmp_path)
    assert ourselves() == executable()
    monkeypatch.setenv("PATH", str(Path(executable()).parent))
    assert ourselves() == "riverrun"


def test_nodes_started_elsewhere_are_named_after_ctrl_c(tmp_path: Path) -> None:
    """A node that was restarted by hand, and one that joined."""
    port = free_ports(43)
    words = ["--data", str(tmp_path), "--port", str(port), "--nodes", "3", "--json"]
    joining = ["--node-id", "4", "--data", str(tmp_path / "joined")]
    joining += ["--advertised-addr", f"127.0.0.1:{port + 30}", "--seed-nodes", f"127.0.0.1:{port}"]
    cli = Cli(f"127.0.0.1:{port}")
    with cli.started("up", *words) as up, cli.started("start", *joining) as fourth:
        ready = json.loads(up.line())
        os.kill(ready["nodes"][1]["pid"], signal.SIGKILL)
        up.notice("node 2 ended by signal 9")
        with cli.started("start", "--config", ready["nodes"][1]["config"]) as second:
            until(
                lambda: [row[3] for row in cli.rows("cluster", "nodes")] == ["up"] * 4,
                seconds=SECONDS_MAX,
                what="all four are up",
            )
            up.process.send_signal(signal.SIGINT)
            told = up.notice("started elsewhere")
            assert up.process.wait(SECONDS_MAX) == 0
            assert (second.process.poll(), fourth.process.poll()) == (None, None)
    assert told == (
        f"riverrun: nodes 2 at 127.0.0.1:{port + 10}, 4 at 127.0.0.1:{port + 30} were started "
        "elsewhere and keep running; stop each with Ctrl-C where it was started, or: "
        f"{ourselves()} stop --config {tmp_path}/node-2.toml\n"
    )


def test_three_nodes_start_prefix_their_logs_and_stop_together(tmp_path: Path) -> None:
    port = free_ports(23)
    process = subprocess.Popen(
        [executable(), "up", "--data", str(tmp_path), "--port", str(port), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        cli = Cli(ready["bootstrap"].split(",")[1])
        assert ready["bootstrap"] == ",".join(f"127.0.0.1:{port + 10 * n}" for n in range(3))
        assert [node["id"] for node in ready["nodes"]] == [1, 2, 3]
        assert ready["missing"] == []
        status = json.loads(cli.run("cluster", "status", "--json"))
        assert status["healthy"] is True
        assert [broker["id"] for broker in status["brokers"]] == [1, 2, 3]
        assert len(status["quorum"]["replicas"]) == 3
        created = cli.run("topics", "create", "copies")
        assert created == "Created copies with 1 partition, replication factor 3.\n"
        os.kill(ready["nodes"][2]["pid"], signal.SIGKILL)
        until(
            lambda: json.loads(cli.run("cluster", "status", "--json"))["problems"],
            seconds=SECONDS_MAX,
            what="the cluster notices",
        )
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    again = f"{ourselves()} start --config {tmp_path}/node-3.toml"
    assert f"riverrun: node 3 ended by signal 9; start it again with: {again}\n" in said
    lines = said.splitlines()
    assert all(
        line.startswith(("node-1 | ", "node-2 | ", "node-3 | ", "riverrun: ")) for line in lines
    )
    for number in (1, 2, 3):
        own = [line for line in lines if line.startswith(f"node-{number} | ")]
        assert any("] stopping " in line or "] node is up " in line for line in own)
        assert not any(f" node={number}" in line for line in own)
    assert "elsewhere" not in said
    assert sorted(path.name for path in tmp_path.glob("*.toml*")) == [
        "node-1.toml", "node-2.toml", "node-3.toml",
    ]  # fmt: skip
