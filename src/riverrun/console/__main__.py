"""``python -m riverrun.console --socket PATH``: the console of a node.

The node writes the settings as one line of JSON to standard input, and keeps it open while it runs.
"""

from __future__ import annotations

import argparse
import os
import sys

import msgspec
import structlog

from riverrun.console.app import ConsoleSettings
from riverrun.console.server import IDLE_SECONDS_MAX, NICENESS, ServerLimits, run_on_socket


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m riverrun.console")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--idle-seconds-max", type=float, default=IDLE_SECONDS_MAX)
    arguments = parser.parse_args()
    os.nice(NICENESS)
    log_to_stderr()
    settings = msgspec.json.decode(_first_line(), type=ConsoleSettings)
    limits = ServerLimits(idle_seconds_max=arguments.idle_seconds_max)
    run_on_socket(settings, arguments.socket, limits)


def log_to_stderr() -> None:
    """The node reads one line of our standard output, so a log there would fill the pipe, and then
    block. Standard error is that of the node."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def _first_line() -> bytes:
    """Not more than the line: the event loop reads the rest, which is the end of the input."""
    line = bytearray()
    descriptor = sys.stdin.fileno()
    while not line.endswith(b"\n"):
        received = os.read(descriptor, 65536)
        if not received:
            break
        line += received
    return bytes(line)


if __name__ == "__main__":
    main()
