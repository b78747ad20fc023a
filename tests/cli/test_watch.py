"""`--watch` and `riverrun top` on a terminal and in a pipe."""

import json
import signal
import subprocess

import pytest

from riverrun.cli.support.watching import fitted
from tests.cli.commands import Cli
from tests.cli.terminals import terminal

ENTER = "\x1b[?1049h"
LEAVE = "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"
ERASE_SCROLLBACK = "\x1b[3J"


@pytest.mark.parametrize("ending", ["ctrl-c", "q", "SIGTERM", "SIGHUP"])
def test_watch_uses_the_alternate_screen_and_restores_the_terminal(cli: Cli, ending: str) -> None:
    with terminal(cli, "cluster", "status", "--watch") as opened:
        opened.wait_for("healthy")
        assert opened.seen.startswith(ENTER)
        assert not opened.is_restored, "keys are not echoed while it watches"
        if ending == "q":
            opened.type("q")
            code = opened.end()
        else:
            number = signal.SIGINT if ending == "ctrl-c" else signal.Signals[ending]
            code = opened.end(number)
        assert code == (0 if ending in ("ctrl-c", "q") else 128 + number)
        assert opened.is_restored
    before, entered, after = opened.seen.rpartition(LEAVE)
    assert (entered, after) == (LEAVE, "")
    assert before.count(ENTER) == 1
    assert SHOW_CURSOR in before
    assert ERASE_SCROLLBACK not in before


def test_a_wrong_name_is_reported_after_the_terminal_is_restored(cli: Cli) -> None:
    with terminal(cli, "topics", "describe", "nosuch", "--watch") as opened:
        assert opened.end() == 4
        assert opened.is_restored
    screen, _, after = opened.seen.rpartition(LEAVE)
    assert "nosuch" not in screen
    assert "there is no topic nosuch" in after


def test_a_watcher_continues_while_no_node_responds(cli: Cli) -> None:
    words = ["cluster", "status", "--watch", "--bootstrap", "127.0.0.1:1"]
    with terminal(cli, *words) as opened:
        opened.wait_for("connection refused")
        opened.seen = ""
        opened.wait_for("connection refused")
        assert opened.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    "command",
    ["cluster status --watch", "groups list --watch", "top --interval 0.2", "topics list --watch"],
)
def test_a_closed_pipe_ends_a_watcher_with_success(cli: Cli, name: str, command: str) -> None:
    cli.run("topics", "create", name)
    cli.read(name, "--group", name, "--timeout", "0")
    done = subprocess.run(
        f"{cli.executable} {command} | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", env=cli.env, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")


def test_a_terminal_without_escape_codes_gets_plain_lines(cli: Cli) -> None:
    with terminal(cli, "cluster", "status", "--watch", name="dumb") as opened:
        opened.wait_for("healthy")
        assert opened.end(signal.SIGINT) == 0
    assert "\x1b" not in opened.seen


def test_a_screen_that_is_too_small_says_how_much_is_missing() -> None:
    text = "one\ntwo\nthree\nfour\n"
    assert fitted(text, 10, 4) == "one\ntwo\nthree\nfour"
    assert fitted(text, 10, 3) == "one\ntwo\n\x1b[0m... 2 more lines"
    wrapped = "\x1b[31m123456789012345\x1b[0m\ntwo\nthree"
    assert fitted(wrapped, 10, 3).splitlines()[1:] == ["\x1b[0m... 2 more lines"]


def test_top_shows_rates_on_the_alternate_screen(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    cli.read(name, "--group", name, "--timeout", "0")
    with terminal(cli, "top", "--interval", "0.2", lines=200) as opened:
        opened.wait_for("measuring")
        opened.wait_for("records/s, ")
        for word in ("TOPIC", name, "NODE", cli.bootstrap, "LAG"):
            opened.wait_for(word)
        opened.type("q")
        assert opened.end() == 0
        assert opened.is_restored
    assert opened.seen.endswith(LEAVE)


def test_top_measures_records_bytes_and_lag(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    cli.write(name, "1\n2\n3\n", "--partition", "0")
    cli.read(name, "--group", name, "--from-beginning", "-n", "3")
    with cli.started("top", "--interval", "0.2", "--json") as running:
        first = json.loads(running.line())
        assert first["seconds"] is None
        assert {row["records_per_second"] for row in first["topics"]} == {None}
        cli.write(name, "4\n5\n6\n7\n", "--partition", "1")
        rate = 0.0
        while not rate:
            report = json.loads(running.line())
            (topic,) = [row for row in report["topics"] if row["name"] == name]
            rate = topic["records_per_second"]
        assert rate == pytest.approx(4 / report["seconds"], rel=0.1)
        assert topic["bytes_per_second"] > 4
        (node,) = report["nodes"]
        assert (node["state"], node["records_per_second"] >= rate) == ("up", True)
        (group,) = [row for row in report["groups"] if row["group"] == name]
        assert (group["state"], group["members"], group["lag"]) == ("Empty", 0, 4)
        cli.read(name, "--group", name, "-n", "4")
        while group["lag"]:
            report = json.loads(running.line())
            (group,) = [row for row in report["groups"] if row["group"] == name]
        assert group["records_per_second"] > 0
        assert running.stop(signal.SIGINT) == 0


def test_top_once_prints_rows_by_kind(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    lines = cli.run("top", "--once", "--interval", "0.2").splitlines()
    assert lines[0].split("\t") == ["KIND", "TOPIC", "PARTITIONS", "RECORDS/S", "BYTES/S", "SIZE"]
    rows = [line.split("\t") for line in lines]
    assert ["topic", name, "1", "0.0", "0", "0"] in rows
    (node,) = [row for row in rows if row[0] == "node"]
    assert node[1:4] == ["1", cli.bootstrap, "up"]
