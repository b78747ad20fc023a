"""``riverrun``, and ``python -m riverrun.cli``: the shortest way to what was asked for.

A node that is started again from its file is waited for by clients, and the library of the command
line takes a quarter of that time only to find out that nothing else was said.
"""

from __future__ import annotations

import sys

FROM_A_FILE = ["start", "--config"]


def main() -> None:
    words = sys.argv[1:]
    if words[:-1] == FROM_A_FILE and not words[-1].startswith("-"):
        import gc

        gc.disable()  # until the node serves: modules are not garbage
        from riverrun.server.main import main as start

        sys.exit(start(words[-1:]))
    from riverrun.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
