"""`riverrun` on a pseudo terminal: what a person sees and types."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

from tests.cli.commands import SECONDS_MAX, Cli

SHOWN_MAX = 3000
"""Characters of the screen in the message of a failure."""


class Terminal:
    """A terminal of a given size with one command."""

    def __init__(self, cli: Cli, words: list[str], columns: int, lines: int, name: str) -> None:
        self._master, self._slave = pty.openpty()
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)
        self.settings_before = self._settings()
        env = {name: text for name, text in cli.env.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [cli.executable, *words],
            stdin=self._slave, stdout=self._slave, stderr=self._slave,
            env={**env, "TERM": name}, start_new_session=True,
        )  # fmt: skip
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + SECONDS_MAX
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen[-SHOWN_MAX:]!r}"
            self._read(0.1)

    def end(self, number: signal.Signals | None = None) -> int:
        """The exit code, after an optional signal; reads the rest of the output."""
        if number is not None:
            self.process.send_signal(number)
        end = time.monotonic() + SECONDS_MAX
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end: {self.seen[-SHOWN_MAX:]!r}"
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.returncode

    @property
    def is_restored(self) -> bool:
        """Whether keys are echoed and collected in lines as before."""
        return self._settings() == self.settings_before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS_MAX)
        os.close(self._master)
        os.close(self._slave)

    def _read(self, seconds: float) -> bool:
        readable, _, _ = select.select([self._master], [], [], seconds)
        if readable:
            self.seen += os.read(self._master, 65536).decode(errors="replace")
        return bool(readable)

    def _settings(self) -> list[object]:
        return list(termios.tcgetattr(self._slave))


@contextlib.contextmanager
def terminal(
    cli: Cli, *words: str, columns: int = 200, lines: int = 50, name: str = "xterm"
) -> Iterator[Terminal]:
    opened = Terminal(cli, list(words), columns, lines, name)
    try:
        yield opened
    finally:
        opened.close()


def on_terminal(
    cli: Cli, words: list[str], answer: str = "", *, columns: int = 200
) -> tuple[int, str]:
    """Exit code and output of a command on a terminal."""
    with terminal(cli, *words, columns=columns) as opened:
        if answer:
            opened.type(answer)
        return opened.end(), opened.seen
