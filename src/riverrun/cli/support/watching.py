"""``--watch``: repeat a report until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat it every second until Ctrl-C.")]
EVERY_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def show(once: Callable[[], None], *, is_watched: bool) -> None:
    """Call ``once``, or repeat it until Ctrl-C, even while the cluster does not respond."""
    if not is_watched:
        once()
        return
    try:
        while True:
            if sys.stdout.isatty():
                print(CLEAR, end="")
            try:
                once()
            except typer.Exit as ended:
                if ended.exit_code == 2:
                    raise
            sys.stdout.flush()
            time.sleep(EVERY_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
