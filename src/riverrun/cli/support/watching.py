"""``--watch``: repeat a report until Ctrl-C.

On a terminal the reports are shown on the alternate screen, like those of watch and top, so the
earlier output stays. Elsewhere they are printed one after another.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Annotated, NoReturn, TextIO

import typer

from riverrun.cli.support.options import NOT_FOUND, USAGE

Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Repeat it every second until Ctrl-C (or q on a terminal)."),
]
EVERY_SECONDS = 1.0
ENTER_SCREEN = "\x1b[?1049h\x1b[?25l"
LEAVE_SCREEN = "\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[H\x1b[J"
QUIT_KEYS = (b"q", b"Q")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_NO_STYLE = "\x1b[0m"


class Screenful(io.StringIO):
    """Collects what a report prints. It counts as a terminal, for headings and colours."""

    def isatty(self) -> bool:
        return True


def show(
    once: Callable[[], None], *, is_watched: bool, every_seconds: float = EVERY_SECONDS
) -> None:
    """Call ``once``, or repeat it until Ctrl-C, even while the cluster does not respond."""
    if not is_watched:
        once()
        return
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _repeat_on_screen(once, every_seconds)
        else:
            _repeat_in_lines(once, every_seconds)
    raise typer.Exit(0)


def _repeat_in_lines(once: Callable[[], None], every_seconds: float) -> None:
    is_first = True
    while True:
        try:
            once()
        except typer.Exit as ended:
            if _is_final(ended, is_first=is_first):
                raise
        is_first = False
        time.sleep(every_seconds)


def _repeat_on_screen(once: Callable[[], None], every_seconds: float) -> None:
    terminal = sys.stdout
    page = Screenful()
    try:
        with _alternate_screen(terminal):
            is_first = True
            while True:
                page = Screenful()
                with contextlib.redirect_stdout(page), contextlib.redirect_stderr(page):
                    try:
                        once()
                    except typer.Exit as ended:
                        if _is_final(ended, is_first=is_first):
                            raise
                is_first = False
                size = shutil.get_terminal_size()
                terminal.write(CLEAR + fitted(page.getvalue(), size.columns, size.lines))
                terminal.flush()
                if _is_quit_within(every_seconds):
                    return
    except typer.Exit:
        print(page.getvalue(), end="", file=sys.stderr)
        raise


def _is_final(ended: typer.Exit, *, is_first: bool) -> bool:
    """Wrong flags and names do not become right by waiting. An object that was there may return,
    and a reader that closed its pipe does not."""
    final = (0, USAGE, NOT_FOUND) if is_first else (0, USAGE)
    return ended.exit_code in final


@contextlib.contextmanager
def _alternate_screen(terminal: TextIO) -> Iterator[None]:
    """The terminal's second screen, without cursor and echo. The first one is restored at the end,
    also after errors and signals."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with _unbuffered_keys():
            try:
                terminal.write(ENTER_SCREEN)
                terminal.flush()
                yield
            finally:
                terminal.write(LEAVE_SCREEN)
                terminal.flush()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextlib.contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Keys arrive at once and are not echoed. Ctrl-C still interrupts."""
    if not sys.stdin.isatty():
        yield
        return
    settings = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def _is_quit_within(seconds: float) -> bool:
    """Wait, and return early with True if the user presses q."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        readable, _, _ = select.select([sys.stdin], [], [], left)
        if readable:
            key = os.read(sys.stdin.fileno(), 1)
            if key in QUIT_KEYS or not key:  # no key: the terminal is gone
                return True
    return False


def fitted(text: str, columns: int, lines_max: int) -> str:
    """As many lines as the screen has room for; the last one counts those that are left out. Lines
    that are too long are wrapped by the terminal."""
    from rich.cells import cell_len

    lines = text.splitlines()
    heights = [max(1, -(-cell_len(_STYLE.sub("", line)) // columns)) for line in lines]
    if sum(heights) <= lines_max:
        return "\n".join(lines)
    shown: list[str] = []
    room = lines_max - 1
    for line, height in zip(lines, heights, strict=True):
        if height > room:
            break
        shown.append(line)
        room -= height
    left = len(lines) - len(shown)
    return "\n".join([*shown, f"{_NO_STYLE}... {left} more lines"])
