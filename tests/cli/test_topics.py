"""riverrun topics, against a real node."""

import json
import os
import pty
import signal
import subprocess
from typing import Any

import pytest

from riverrun.client.pool import ConnectionPool
from tests.cli.commands import Cli
from tests.processes import free_ports


def described(cli: Cli, name: str) -> dict[str, Any]:
    (topic,) = json.loads(cli.run("topics", "describe", name, "--json"))
    assert isinstance(topic, dict)
    return topic


def test_the_life_of_a_topic(cli: Cli, name: str) -> None:
    words = ["--partitions", "3", "--config", "retention.ms=60000"]
    made = cli.run("topics", "create", name, *words)
    assert made == f"Created {name} with 3 partitions, replication factor 1.\n"
    assert [name, "3", "1"] in cli.rows("topics", "list")

    cli.write(name, "one\ntwo\n", "--partition", "1")
    topic = described(cli, name)
    assert [row["end_offset"] for row in topic["partitions"]] == [0, 2, 0]
    written = topic["partitions"][1]
    assert written["size_bytes"] > 0
    assert (written["leader"], written["replicas"], written["isr"]) == (1, [1], [1])
    setting = {"name": "retention.ms", "value": "60000", "source": "topic"}
    assert topic["settings"] == [setting]

    changes = ["--config", "max.message.bytes=2000", "--delete-config", "retention.ms"]
    cli.run("topics", "alter", name, *changes, "--partitions", "5")
    topic = described(cli, name)
    assert len(topic["partitions"]) == 5
    assert [(row["name"], row["value"]) for row in topic["settings"]] == [
        ("max.message.bytes", "2000")
    ]

    assert cli.run("topics", "delete", name, "--yes") == f"Deleted {name}.\n"
    assert name not in [row[0] for row in cli.rows("topics", "list")]
    assert "there is no topic" in cli.result("topics", "delete", name, "--yes").stderr


def test_plain_rows_start_with_their_kind(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2", "--config", "cleanup.policy=compact")
    rows = cli.rows("topics", "describe", name)
    assert [row[:2] + row[3:] for row in rows if row[0] == "topic"] == [["topic", name, "2", "1"]]
    assert [row for row in rows if row[0] == "partition"] == [
        ["partition", name, str(index), "1", "1", "1", "0", "0", "0", "-"] for index in (0, 1)
    ]
    assert rows[-1] == ["setting", name, "cleanup.policy", "compact", "topic"]
    everything = cli.rows("topics", "describe", name, "--all-settings")
    assert ["setting", name, "segment.bytes", "1073741824", "default"] in everything


def test_watching_a_topic_ends_with_ctrl_c(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    with cli.started("topics", "describe", name, "--watch", "--json") as running:
        (before,) = json.loads(running.line())
        cli.write(name, "one\n")
        end = before["partitions"][0]["end_offset"]
        while end == 0:
            (later,) = json.loads(running.line())
            end = later["partitions"][0]["end_offset"]
        assert end == 1
        assert running.stop(signal.SIGINT) == 0


def test_one_invalid_change_changes_nothing(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "--partitions", "2")
    for bad in (["--partitions", "1"], ["--config", "no.such=1", "--partitions", "3"]):
        result = cli.result("topics", "alter", name, "--config", "retention.ms=1000", *bad)
        assert result.exit_code == 1, result.output
    topic = described(cli, name)
    assert (len(topic["partitions"]), topic["settings"]) == (2, [])


def test_existing_topics(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    result = cli.result("topics", "create", name, f"{name}-other")
    assert result.exit_code == 1
    assert "TOPIC_ALREADY_EXISTS" in result.stderr
    assert f"Created {name}-other with" in result.stdout
    again = cli.run("topics", "create", name, "--if-not-exists", "--json")
    assert [(row["name"], row["created"]) for row in json.loads(again)] == [(name, False)]


def test_internal_topics_are_shown_on_demand(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    cli.read(name, "--group", name, "--timeout", "0")
    assert "__consumer_offsets" not in [row[0] for row in cli.rows("topics", "list")]
    assert "__consumer_offsets" in [row[0] for row in cli.rows("topics", "list", "--internal")]


@pytest.mark.parametrize(
    ("words", "code", "saying"),
    [
        (["describe", "nosuch"], 4, "there is no topic nosuch"),
        (["create", "bad/name"], 1, "INVALID_TOPIC_EXCEPTION"),
        (["create", "x", "--config", "novalue"], 2, "expected NAME=VALUE"),
        (["create", "x", "--partitions", "0"], 2, "--partitions"),
        (["create", "x", "--replication-factor", "3"], 1, "INVALID_REPLICATION_FACTOR"),
        (["create", "x", "--config", "segment.bytes=abc"], 1, "INVALID_CONFIG"),
        (["create", "x", "--config", "retention.mss=3"], 1, "did you mean retention.ms?"),
        (["alter", "x"], 2, "nothing to change"),
        (["alter", "x", "--config", "a=1", "--delete-config", "a"], 2, "both in"),
        (["list", "--bootstrap", "nowhere"], 2, "is not an address like 127.0.0.1:9092"),
        (["list", "--bootstrap", "x" * 70 + ":1"], 2, "label"),
    ],
)
def test_mistakes_are_explained(cli: Cli, words: list[str], code: int, saying: str) -> None:
    result = cli.result("topics", *words)
    assert result.exit_code == code, result.output
    assert saying in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_no_cluster_is_reported_with_the_remedy(cli: Cli) -> None:
    address = f"127.0.0.1:{free_ports(1)}"
    for words in (["topics", "list"], ["groups", "list"]):
        result = cli.result(*words, "--bootstrap", address)
        assert result.exit_code == 3
        assert f"{address} (connection refused)" in result.stderr
        assert "riverrun up" in result.stderr


def test_deletion_asks_on_a_terminal_and_needs_yes_elsewhere(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    done = cli.done("topics", "delete", name)
    assert done.returncode == 2
    assert b"Use --yes" in done.stderr
    assert on_terminal(cli, ["topics", "delete", name], answer="n\n")[0] == 1
    assert name in [row[0] for row in cli.rows("topics", "list")]
    code, text = on_terminal(cli, ["topics", "delete", name], answer="y\n")
    assert code == 0
    assert f"Delete {name} (1 partition) and all records? [y/N]" in text
    assert name not in [row[0] for row in cli.rows("topics", "list")]


def test_a_terminal_gets_headings_and_colours(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "--config", "retention.ms=60000")
    code, text = on_terminal(cli, ["topics", "describe", name])
    assert code == 0
    assert f"{name}  1 partition, replication factor 1" in text
    assert "\033[1;36mleader" in text
    assert "partition\t" not in text


def on_terminal(cli: Cli, words: list[str], answer: str = "") -> tuple[int, str]:
    """Exit code and terminal output."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [cli.executable, *words], stdin=terminal, stdout=terminal, stderr=terminal,
        env={**cli.env, "TERM": "xterm", "COLUMNS": "200"}, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    os.write(master, answer.encode())
    seen = bytearray()
    try:
        while part := os.read(master, 65536):
            seen += part
    except OSError:
        pass  # how Linux reports a closed terminal
    os.close(master)
    return process.wait(30), seen.decode()


def test_names_are_completed_from_the_cluster(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    env = {
        **cli.env,
        "_RIVERRUN_COMPLETE": "complete_bash",
        "COMP_WORDS": f"riverrun consume {name[:-1]}",
        "COMP_CWORD": "2",
    }

    done = subprocess.run([cli.executable], env=env, capture_output=True, timeout=60, check=False)
    assert name in done.stdout.decode().split()


def test_a_dead_node_does_not_block_reports_of_the_others(
    cli: Cli, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead node is listed for a while, so that clients find its successors; commands skip it."""
    cli.run("topics", "create", name)
    metadata, gone = ConnectionPool.metadata, free_ports(1)

    async def with_a_ghost(self: ConnectionPool, *words: Any, **options: Any) -> Any:
        answer = await metadata(self, *words, **options)
        self.cluster.nodes[9] = ("127.0.0.1", gone)
        return answer

    monkeypatch.setattr(ConnectionPool, "metadata", with_a_ghost)
    assert cli.rows("topics", "describe", name)
    listed = cli.result("groups", "list")
    assert listed.exit_code == 0
    assert "node 9 cannot be reached" in listed.stderr
