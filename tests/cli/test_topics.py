"""riverrun topics, against a real node."""

import json
import re
import signal
import subprocess
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from riverrun.client.pool import ConnectionPool
from tests.cli.commands import Cli
from tests.cli.terminals import on_terminal
from tests.processes import free_ports


def described(cli: Cli, name: str) -> dict[str, Any]:
    (topic,) = json.loads(cli.run("topics", "describe", name, "--json"))
    assert isinstance(topic, dict)
    return topic


def test_the_life_of_a_topic(cli: Cli, name: str) -> None:
    words = ["--partitions", "3", "--config", "retention.ms=60000"]
    made = cli.run("topics", "create", name, *words)
    assert made == f"Created {name} with 3 partitions, replication factor 1.\n"
    assert [name, "3", "1", "0", "0"] in cli.rows("topics", "list")

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


def test_more_in_sync_replicas_than_replicas_are_a_warning(cli: Cli, name: str) -> None:
    setting = ("--config", "min.insync.replicas=2")
    expected = f"min.insync.replicas=2 is more than the replication factor of {name} (1)"
    for words in (
        ("create", name, *setting),
        ("alter", name, *setting, "--dry-run"),
        ("alter", name, *setting),
    ):
        done = cli.result("topics", *words)
        assert done.exit_code == 0, done.stderr
        assert f"warning: {expected}" in done.stderr
    one = ("--config", "min.insync.replicas=1")
    assert cli.result("topics", "alter", name, *one).stderr == ""
    assert cli.result("topics", "create", f"{name}-other", *one).stderr == ""


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("create", "{}-2", "--partitions", "100000000"), "choose fewer --partitions"),
        (("alter", "{}", "--partitions", "100000000"), "choose fewer --partitions"),
        (("alter", "{}", "--partitions", "1"), "riverrun topics create NAME --partitions 1"),
        (("alter", "{}", "--partitions", "2"), "choose more than 2"),
    ],
)
def test_impossible_numbers_of_partitions_name_a_remedy(
    cli: Cli, name: str, words: tuple[str, ...], remedy: str
) -> None:
    cli.run("topics", "create", name, "--partitions", "2")
    done = cli.result("topics", *(word.format(name) for word in words))
    assert done.exit_code == 1
    assert done.stderr.count("Remedy:") == 1
    assert remedy in done.stderr.partition("Remedy:")[2]


def test_plain_rows_start_with_their_kind(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2", "--config", "cleanup.policy=compact")
    rows = cli.rows("topics", "describe", name)
    assert [row for row in rows if row[0] == "topic"] == [["topic", name, "2", "1", "0", "0"]]
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


def test_topics_are_listed_with_records_size_and_rates(cli: Cli, name: str) -> None:
    cli.run("topics", "create", f"{name}.a", f"{name}.b", "-p", "2")
    cli.write(f"{name}.a", "one\ntwo\n", "--partition", "1")
    (topic,) = json.loads(cli.run("topics", "list", f"{name}.a", "--json"))
    size = topic.pop("size_bytes")
    assert size > 6
    assert topic == {
        "name": f"{name}.a", "partitions": 2, "replication_factor": 1, "records": 2,
        "internal": False,
    }  # fmt: skip
    rows = cli.rows("topics", "list", f"{name}.*", "--rates")
    assert rows == [
        [f"{name}.a", "2", "1", "2", str(size), "0.0", "0"],
        [f"{name}.b", "2", "1", "0", "0", "0.0", "0"],
    ]
    assert [row[0] for row in cli.rows("topics", "list", ".*[.]b", "nosuch")] == [f"{name}.b"]
    assert cli.rows("topics", "list", name) == [], "a pattern matches the whole name"
    assert f"No topic matches {name}." in on_terminal(cli, ["topics", "list", name])[1]


def test_headings_are_the_same_in_a_pipe_and_on_a_terminal(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    piped = cli.run("topics", "list", name).splitlines()
    assert piped[0] == "TOPIC\tPARTITIONS\tREPLICAS\tRECORDS\tSIZE"
    assert cli.run("topics", "list", name, "--no-headers").splitlines() == piped[1:]
    _, shown = on_terminal(cli, ["topics", "list", name], columns=20)
    plain = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert [line.split() for line in plain] == [piped[0].split(), [name, "1", "1", "0", "0", "B"]]
    _, bare = on_terminal(cli, ["topics", "list", name, "--no-headers"])
    assert bare.split() == [name, "1", "1", "0", "0", "B"]


def starts(cli: Cli, name: str) -> list[int]:
    return [row["start_offset"] for row in described(cli, name)["partitions"]]


def test_trim_deletes_the_oldest_records(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    times = [1_000_000_000_000 + 60_000 * number for number in range(6)]
    rows = [{"value": "x", "timestamp": time, "partition": 0} for time in times]
    rows += [{"value": "x", "timestamp": times[0], "partition": 1}]
    cli.write(name, "".join(json.dumps(row) + "\n" for row in rows), "--format", "json")
    words = ["topics", "trim", name, "--before"]
    assert cli.rows("topics", "trim", f"{name}:0", "--before", "4", "--dry-run") == [
        [name, "0", "0", "4", "6", "4"],
    ]
    assert starts(cli, name) == [0, 0], "a dry run deletes nothing"
    moment = datetime.fromtimestamp(times[2] / 1000, UTC).isoformat()
    assert [row[3] for row in cli.rows(*words, moment, "--yes")] == ["2", "1"]
    assert starts(cli, name) == [2, 1]
    only = ["topics", "trim", f"{name}:0", "--before", "end", "--yes", "--json"]
    (trimmed,) = json.loads(cli.run(*only))["partitions"]
    assert (trimmed["partition"], trimmed["deleted_records"]) == (0, 4)
    assert starts(cli, name) == [6, 1]
    assert cli.read(name, "--from-beginning", "--until-end") == ""
    assert cli.rows(*words, "1") == [
        [name, "0", "6", "6", "6", "0"],
        [name, "1", "1", "1", "1", "0"],
    ]


def test_trim_refuses_an_offset_beyond_the_end(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    rows = [{"value": "x", "partition": partition} for partition in (0, 0, 0, 1)]
    cli.write(name, "".join(json.dumps(row) + "\n" for row in rows), "--format", "json")
    refused = cli.result("topics", "trim", name, "--before", "2", "--yes")
    assert refused.exit_code == 1
    assert f"--before 2 is beyond the end: {name}-1 ends at 1; nothing was deleted" in (
        " ".join(refused.stderr.split())
    )
    assert "--before end" in refused.stderr
    assert starts(cli, name) == [0, 0]
    cli.run("topics", "trim", name, "--before", "1", "--yes")
    assert starts(cli, name) == [1, 1], "the end itself is no mistake"


def test_trim_takes_a_duration(cli: Cli, name: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    rows = [{"value": "x", "timestamp": now_ms - hours * 3_600_000} for hours in (72, 1)]
    cli.write(name, "".join(json.dumps(row) + "\n" for row in rows), "--format", "json")
    cli.run("topics", "trim", name, "--before", "2d", "--yes")
    assert starts(cli, name) == [1]


def test_trim_asks_on_a_terminal_and_needs_yes_elsewhere(cli: Cli, name: str) -> None:
    cli.write(name, "one\ntwo\n")
    words = ["topics", "trim", name, "--before", "1"]
    done = cli.done(*words)
    assert (done.returncode, b"Use --yes" in done.stderr) == (2, True)
    assert on_terminal(cli, words, answer="n\n")[0] == 1
    assert starts(cli, name) == [0]
    code, text = on_terminal(cli, words, answer="y\n")
    assert (code, f"Delete 1 record of {name}? [y/N]" in text) == (0, True)
    assert "Deleted 1 record." in text
    assert starts(cli, name) == [1]


def test_a_compacted_topic_is_not_trimmed(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "--config", "cleanup.policy=compact")
    cli.write(name, "k:1\n", "--key-separator", ":")
    refused = cli.result("topics", "trim", name, "--before", "end", "--yes")
    assert refused.exit_code == 1
    assert f"{name}-0: records can only be deleted from a topic with" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "saying"),
    [
        (["list", "*x"], 2, "did you mean '.*x'?"),
        (["trim", "nosuch", "--before", "end"], 4, "there is no topic nosuch"),
        (["trim", "a:x", "--before", "end"], 2, "expected TOPIC or TOPIC:0,1"),
        (["trim", "a", "--before", "soon"], 2, "expected an offset, a time such as"),
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


@pytest.mark.parametrize(
    "words",
    [
        ["describe"],
        ["trim", "--before", "end"],
        ["alter", "--config", "retention.ms=1"],
        ["delete", "--yes"],
    ],
)
def test_a_topic_that_is_missing_is_listed_or_similar_but_not_to_be_created(
    cli: Cli, name: str, words: list[str]
) -> None:
    cli.run("topics", "create", name)
    command, *options = words
    result = cli.result("topics", command, f"{name}x", *options)
    assert result.exit_code == 4
    assert f"did you mean {name}?" in result.stderr
    assert "`riverrun topics list` lists all" in result.stderr
    assert "topics create" not in result.stderr


def test_too_many_replicas_are_refused_with_the_remedy(cli: Cli, name: str) -> None:
    result = cli.result("topics", "create", name, "--replication-factor", "3")
    assert result.exit_code == 1
    told = " ".join(result.stderr.split())
    assert "choose at most as many replicas as there are brokers" in told


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
    assert "\033[1;36mLEADER" in text
    assert "partition\t" not in text


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
