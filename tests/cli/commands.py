"""`riverrun` for tests: in process where it only prints, as a subprocess where it uses pipes."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner, Result

from riverrun.cli.main import build

SECONDS_MAX = 30


class Cli:
    """`riverrun` against one node."""

    executable = str(Path(sys.executable).with_name("riverrun"))

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.env = {**os.environ, "RIVERRUN_BOOTSTRAP": bootstrap}

    def run(self, *words: str, code: int = 0) -> str:
        """Run in process; returns standard output. Not for commands that use pipes."""
        result = self.result(*words)
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.stdout

    def result(self, *words: str) -> Result:
        return CliRunner().invoke(
            build(list(words)), list(words), env={"RIVERRUN_BOOTSTRAP": self.bootstrap}
        )

    def write(self, topic: str, text: str, *words: str) -> None:
        """Produce in process."""
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            self.run("produce", topic, "--file", file.name, *words)

    def read(self, topic: str, *words: str) -> str:
        """Consume a topic in process, into a file instead of standard output."""
        return self.read_all(topic, *words)

    def read_all(self, *words: str) -> str:
        """Like ``read``, with any topics or a pattern."""
        with tempfile.TemporaryFile() as file, _standard_output_to(file.fileno()):
            self.run("consume", *words)
            file.seek(0)
            return file.read().decode()

    def rows(self, *words: str) -> list[list[str]]:
        """The rows of tables, without headings."""
        return [line.split("\t") for line in self.run(*words, "--no-headers").splitlines()]

    def process(self, *words: str, text: str | bytes = b"", code: int = 0) -> str:
        """Run as a subprocess with this standard input; returns standard output."""
        done = self.done(*words, text=text)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout.decode()

    def done(self, *words: str, text: str | bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.executable, *words], input=text.encode() if isinstance(text, str) else text,
            capture_output=True, env=self.env, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator["Running"]:
        """A subprocess that runs until the test stops it."""
        process = subprocess.Popen(
            [self.executable, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env,
            bufsize=0,
        )  # fmt: skip
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()
            process.wait(SECONDS_MAX)


@contextlib.contextmanager
def _standard_output_to(descriptor: int) -> Iterator[None]:
    saved = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


class Running:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def line(self) -> str:
        """The next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def notice(self, containing: str) -> str:
        """The next message on standard error that contains this text."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline().decode():
            if containing in line:
                return line
        raise AssertionError(f"it ended without saying {containing!r}")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)
