"""Groups on the command line: members share partitions with other clients, and groups can be
reset."""

import json
import signal
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cli.commands import Cli, Running
from tests.compatibility.confluent import consumer, owned, read, wait_for
from tests.processes import Server, until


def described(cli: Cli, group: str) -> dict[str, Any]:
    (row,) = json.loads(cli.run("groups", "describe", group, "--json"))
    assert isinstance(row, dict)
    return row


def partitions_of(running: Running) -> list[int]:
    """The partitions that a member reports."""
    words = running.notice("reading partitions").partition("partitions ")[2].split(" of ")[0]
    return [int(word) for word in words.split(", ")]


def numbered(count: int, partitions: int) -> str:
    rows = [{"value": str(n), "partition": n % partitions} for n in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_members_share_partitions_also_with_another_client(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "6")
    words = ["consume", name, "--group", name, "--from-beginning"]
    with cli.started(*words) as first, cli.started(*words) as second:
        wait_for_members(cli, name, 2)
        with consumer(cli.bootstrap, name, partition_assignment_strategy="range") as third:
            third.subscribe([name])
            wait_for([third], lambda: len(owned(third)) == 2, "the third has its share")
            shares = [two_partitions(first), two_partitions(second), sorted(owned(third))]
            assert sorted(index for share in shares for index in share) == list(range(6))

            cli.write(name, numbered(60, 6), "--format", "json")
            values = [first.line() for _ in range(20)] + [second.line() for _ in range(20)]
            values += [(message.value() or b"").decode() for message in read(third, 20)]
            assert sorted(map(int, values)) == list(range(60))

            row = described(cli, name)
            assert (row["state"], row["assignor"], len(row["members"])) == ("Stable", "range", 3)
            assert sum(len(member["partitions"]) for member in row["members"]) == 6

            assert first.stop() == 0
            wait_for([third], lambda: len(owned(third)) == 3, "the third takes over")
            assert len(partitions_of(second)) == 3
        assert second.stop(signal.SIGTERM) == 0
    row = described(cli, name)
    assert (row["state"], row["members"], row["lag"]) == ("Empty", [], 0)


def wait_for_members(cli: Cli, group: str, count: int) -> None:
    def are_there() -> bool:
        result = cli.result("groups", "describe", group, "--json")
        if result.exit_code != 0:
            return False
        (row,) = json.loads(result.stdout)
        return row["state"] == "Stable" and len(row["members"]) == count

    until(are_there, seconds=20, what=f"{count} members in {group}")


def two_partitions(running: Running) -> list[int]:
    """It may have had more while it waited for the other members."""
    while True:
        found = partitions_of(running)
        if len(found) == 2:
            return found


def test_a_group_continues_at_its_committed_offset(cli: Cli, name: str) -> None:
    cli.write(name, "1\n2\n3\n4\n5\n")
    words = ["--group", name, "--from-beginning"]
    assert cli.read(name, *words, "-n", "2") == "1\n2\n"
    assert described(cli, name)["partitions"] == [
        {
            "topic": name, "partition": 0, "committed_offset": 2, "end_offset": 5, "lag": 3,
            "member_id": None,
        }
    ]  # fmt: skip
    assert cli.read(name, *words, "-n", "2") == "3\n4\n"
    assert cli.read(name, *words, "--timeout", "0.1") == "5\n"


def test_records_that_were_not_printed_are_not_committed(cli: Cli, name: str) -> None:
    cli.write(name, "".join(f"{number:0100}\n" for number in range(5000)))
    done = subprocess.run(
        f"{cli.executable} consume {name} --group {name} --from-beginning -q | head -1",
        shell=True, executable="/bin/bash", env=cli.env, capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"0" * 100 + b"\n", b"")
    assert described(cli, name)["partitions"][0]["committed_offset"] == 0


def test_a_new_group_starts_at_the_end_and_commits_it(cli: Cli, name: str) -> None:
    cli.write(name, "old\n")
    assert cli.read(name, "--group", name, "--timeout", "0") == ""
    assert described(cli, name)["partitions"][0]["committed_offset"] == 1
    cli.write(name, "between\n")
    assert cli.read(name, "--group", name, "-n", "1") == "between\n"


def test_list_and_describe(cli: Cli, name: str) -> None:
    cli.write(name, "1\n2\n3\n")
    cli.read(name, "--group", name, "--from-beginning", "-n", "1")
    assert [name, "Empty", "0", "2", name, "classic"] in cli.rows("groups", "list")
    wide = [name, "Empty", "0", "2", name, "classic", "consumer", "1"]
    assert wide in cli.rows("groups", "list", "--wide")
    assert name not in [row[0] for row in cli.rows("groups", "list", "--state", "Stable")]
    rows = cli.rows("groups", "describe", name)
    assert rows == [
        ["group", name, "Empty", "-", "0", "2", "classic", "-"],
        ["partition", name, "0", "1", "3", "2", "-"],
    ]


def test_reset_changes_offsets_only_with_execute(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    cli.write(name, numbered(10, 2), "--format", "json")
    cli.read(name, "--group", name, "--from-beginning", "-n", "10")

    def reset(*words: str) -> list[list[str]]:
        rows = cli.rows("groups", "reset-offsets", name, *words)
        return [row[1:4] for row in rows]

    assert reset("--to-earliest") == [["0", "5", "0"], ["1", "5", "0"]]
    assert described(cli, name)["lag"] == 0, "a dry run changes nothing"
    assert reset("--topic", f"{name}:1", "--to-offset", "2", "--execute") == [["1", "5", "2"]]
    assert [row["lag"] for row in described(cli, name)["partitions"]] == [0, 3]
    assert reset("--shift-by", "-1", "--execute") == [["0", "5", "4"], ["1", "2", "1"]]
    assert reset("--to-latest", "--execute") == [["0", "4", "5"], ["1", "1", "5"]]
    past, future = "2001-01-01T00:00Z", "2101-01-01T00:00:00+01:00"
    assert reset("--to-datetime", future) == [["0", "5", "5"], ["1", "5", "5"]]
    done = json.loads(
        cli.run("groups", "reset-offsets", name, "--to-datetime", past, "--execute", "--json")
    )
    assert (done["executed"], [row["new_offset"] for row in done["partitions"]]) == (True, [0, 0])
    assert len(cli.read(name, "--group", name, "-n", "10").split()) == 10


def test_reset_by_time_finds_the_record(cli: Cli, name: str) -> None:
    times = [1_000_000_000_000, 1_000_000_060_000, 1_000_000_120_000]
    rows = [json.dumps({"value": "x", "timestamp": time}) for time in times]
    cli.write(name, "\n".join(rows), "--format", "json")
    moment = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    words = ["--topic", name, "--to-datetime", moment]
    assert cli.rows("groups", "reset-offsets", name, *words) == [[name, "0", "-", "1", "2"]]


def test_a_group_with_members_is_neither_reset_nor_deleted(cli: Cli, name: str) -> None:
    cli.write(name, "1\n")
    with cli.started("consume", name, "--group", name, "--from-beginning") as running:
        assert running.line() == "1"
        words = ["reset-offsets", name, "--topic", name, "--to-earliest"]
        dry_run = cli.result("groups", *words)
        assert (dry_run.exit_code, dry_run.stdout.splitlines()[1][: len(name)]) == (1, name)
        assert f"--execute would be refused: group {name} is Stable and has 1 member" in (
            dry_run.stderr
        )
        planned = json.loads(cli.run("groups", *words, "--json", code=1))
        assert planned["refused"] == f"group {name} is Stable and has 1 member"
        for refused in ([*words, "--execute"], ["delete", name, "--yes"]):
            result = cli.result("groups", *refused)
            assert result.exit_code == 1
            assert "NON_EMPTY_GROUP" in result.stderr
            assert "stop its members first" in result.stderr
        assert running.stop() == 0
    assert cli.run("groups", "delete", name, "--yes", "--json") == f'{{"deleted": ["{name}"]}}\n'
    assert name not in [row[0] for row in cli.rows("groups", "list")]


def test_offsets_of_single_topics_are_deleted(cli: Cli, name: str) -> None:
    other = f"{name}-other"
    for topic in (name, other):
        cli.run("topics", "create", topic, "-p", "2")
        cli.read(topic, "--group", name, "--timeout", "0")
    (row,) = [row for row in cli.rows("groups", "list") if row[0] == name]
    assert row == [name, "Empty", "0", "0", f"{name},{other}", "classic"]
    words = ["delete-offsets", name, "--topic"]
    assert cli.run("groups", *words, f"{other}:0", "--yes") == (
        f"Deleted the committed offsets of {name} in {other}-0.\n"
    )
    done = json.loads(cli.run("groups", *words, other, "--yes", "--json"))
    assert done == {"group": name, "deleted": [{"topic": other, "partition": 1}]}
    left = [(row["topic"], row["partition"]) for row in described(cli, name)["partitions"]]
    assert left == [(name, 0), (name, 1)]
    missing = cli.result("groups", *words, other, "--yes")
    assert missing.exit_code == 4
    assert f"no committed offsets of {other}; it has those of: {name}" in missing.stderr


def test_offsets_of_a_topic_that_members_read_are_kept(cli: Cli, name: str) -> None:
    cli.write(name, "1\n")
    cli.read(name, "--group", name, "--from-beginning", "-n", "1")
    with cli.started("consume", name, "--group", name) as running:
        running.notice("reading partitions")
        refused = cli.result("groups", "delete-offsets", name, "--topic", name, "--yes")
        assert refused.exit_code == 1
        assert f"{name}-0: GROUP_SUBSCRIBED_TO_TOPIC" in refused.stderr
        assert "stop the members that read the topic" in refused.stderr
        (row,) = [row for row in cli.rows("groups", "list") if row[0] == name]
        assert row[1:] == ["Stable", "1", "0", name, "classic"]
        (member,) = [row for row in cli.rows("groups", "describe", name) if row[0] == "member"]
        assert member[1:] == ["riverrun-cli", "127.0.0.1", f"{name}:0", "-", "-"]
        wide = cli.rows("groups", "describe", name, "--wide")
        (member_id,) = {row[-1] for row in wide if row[0] in ("member", "partition")}
        assert member_id.startswith("riverrun-cli-")
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("words", "code", "saying"),
    [
        (["delete-offsets", "nosuch", "--topic", "t"], 4, "there is no group nosuch"),
        (["delete-offsets", "nosuch"], 2, "--topic"),
        (["describe", "nosuch"], 4, "there is no group nosuch"),
        (["delete", "nosuch", "--yes"], 4, "there is no group nosuch"),
        (["delete", "nosuch"], 2, "Use --yes"),
        (["reset-offsets", "nosuch", "--to-latest"], 4, "there is no group nosuch"),
        (["reset-offsets", "g"], 2, "exactly one of"),
        (["reset-offsets", "g", "--to-latest", "--to-earliest"], 2, "exactly one of"),
        (["reset-offsets", "g", "--to-latest", "--topic", "nosuch"], 4, "no topic nosuch"),
        (["reset-offsets", "g", "--to-latest", "--topic", "a:x"], 2, "TOPIC:0,1"),
        (["reset-offsets", "g", "--to-datetime", "soon"], 2, "2025-01-31T12:00"),
    ],
)
def test_mistakes_are_explained(cli: Cli, words: list[str], code: int, saying: str) -> None:
    result = cli.result("groups", *words)
    assert result.exit_code == code, result.output
    assert saying in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_members_survive_the_kill_and_restart_of_a_node(cli: Cli, node: Server, name: str) -> None:
    """Only the files of the node are left."""
    cli.write(name, "before\n")
    words = ["consume", name, "--from-beginning"]
    with cli.started(*words) as alone, cli.started(*words, "--group", name) as member:
        assert (alone.line(), member.line()) == ("before", "before")
        node.kill()
        node.restart()
        cli.write(name, "after\n")
        assert alone.line() == "after"
        assert member.line() in ("after", "before")  # again if it was not committed yet
        assert (alone.stop(), member.stop()) == (0, 0)


def test_watching_a_group_ends_with_ctrl_c(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    cli.write(name, "one\n")
    cli.read(name, "--group", name, "--from-beginning", "--max-messages", "1")
    with cli.started("groups", "describe", name, "--watch", "--json") as running:
        (before,) = json.loads(running.line())
        assert (before["state"], before["lag"]) == ("Empty", 0)
        cli.write(name, "two\nthree\n")
        lag = 0
        while lag == 0:
            (later,) = json.loads(running.line())
            lag = later["lag"]
        assert lag == 2
        assert running.stop(signal.SIGINT) == 0
