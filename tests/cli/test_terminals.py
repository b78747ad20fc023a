"""riverrun produce and consume on a terminal: progress, and no control characters of records."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.cli.support.progress import InputFile, share_in_words
from tests.cli.commands import SECONDS_MAX, Cli

# The interval is shortened, so that fast machines show progress too.
EAGER = (
    "import riverrun.cli.support.progress as p; p.EVERY_S = 0.0; "
    "from riverrun.cli.main import main; main()"
)


def on_terminal(cli: Cli, *words: str, stdout: int | None = None) -> str:
    """The output of a command on a terminal; its standard output may be elsewhere."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", EAGER, *words],
        env=cli.env, stdin=subprocess.DEVNULL, stdout=stdout or terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    try:
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            shown += part
        assert process.wait(SECONDS_MAX) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return shown.decode()


def test_consume_escapes_control_characters_on_a_terminal_only(cli: Cli, name: str) -> None:
    value = b"\x1b]0;owned\x07 \xff ok"
    cli.process("produce", name, "--quiet", text=value + b"\n")
    words = ["consume", name, "--from-beginning", "--until-end"]
    assert on_terminal(cli, *words) == "\\x1b]0;owned\\x07 \\xff ok\r\n"
    assert cli.done(*words).stdout == value + b"\n"


def test_produce_shows_how_much_of_a_file_is_written(cli: Cli, name: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 40_000)
    shown = on_terminal(cli, "produce", name, "--file", str(path))
    steps = [step for step in shown.split("\r\x1b[K") if " % " in step or " %, " in step]
    assert steps and all("records to" in step for step in steps)
    assert shown.splitlines()[-1].rpartition("\x1b[K")[2].startswith("40,001 records to")
    assert on_terminal(cli, "produce", name, "--file", str(path), "--quiet") == ""


def test_consume_into_a_file_shows_progress(cli: Cli, name: str, tmp_path: Path) -> None:
    cli.write(name, ("x" * 999 + "\n") * 5_000)
    with (tmp_path / "out").open("wb") as out:
        words = ["consume", name, "--from-beginning", "--until-end"]
        shown = on_terminal(cli, *words, stdout=out.fileno())
    assert "records; " in shown and " %" in shown
    assert shown.endswith("\r\x1b[K"), "the line is removed at the end"
    assert (tmp_path / "out").stat().st_size == 5_000_000


def test_progress_of_an_input_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    with (tmp_path / "file").open("rb", buffering=0) as file:
        file.read(200)
        part = InputFile.of(file.fileno())
        assert part is not None and part.fraction() == 0
        file.read(400)
        assert part.fraction() == 0.5
        file.read()
        assert part.fraction() == 1
    reading, writing = os.pipe()
    assert InputFile.of(reading) is None
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("fraction", "seconds", "words"),
    [
        (0, 1, "0 %"),
        (0.25, 10, "25 %, about 30 s left"),
        (0.01, 10, "1 %, about 16 min left"),
        (0.001, 10, "0 %, about 2 h 46 min left"),
        (1, 10, "100 %"),
    ],
)
def test_share_in_words(fraction: float, seconds: float, words: str) -> None:
    assert share_in_words(fraction, seconds) == words
