"""``riverrun``: finds the command and loads only the modules that it needs.

Loading everything would cost each start a quarter of a second, so the table names modules by text;
only help and shell completion load them all.
"""

from __future__ import annotations

import importlib
import sys

import typer
from typer.core import TyperGroup

from riverrun.cli.support.options import USAGE

HELP = """A partitioned log that speaks the Apache Kafka protocol.

\b
Start here:  riverrun up            a cluster on this machine
             riverrun topics list   what it holds
             riverrun produce T     write lines to a topic
             riverrun consume T     read them back

Commands end with 0 when all went well, 1 when something failed, 2 when flags, settings
or the data directory are refused, 3 when no cluster answers, 4 when what was named is not there.
"""

# command -> module with `register(app: typer.Typer) -> None`
COMMANDS = {
    "up": "riverrun.cli.up.command",
    "start": "riverrun.cli.start",
    "topics": "riverrun.cli.topics.command",
    "produce": "riverrun.cli.records.produce",
    "consume": "riverrun.cli.records.consume",
    "groups": "riverrun.cli.groups.command",
    "cluster": "riverrun.cli.cluster.command",
    "quorum": "riverrun.cli.quorum.command",
    "dump-log": "riverrun.cli.records.dump_log",
    "bench": "riverrun.cli.benchmark.command",
    "pipeline": "riverrun.pipeline.command",
    "audit": "riverrun.pipeline.audit.command",
    "simulate": "riverrun.simulation.command",
    "chaos": "riverrun.chaos.command",
}

SPEAK_OF_NAMES = ("topics", "produce", "consume", "groups")


class InOrder(TyperGroup):
    """Help shows the commands as the table has them: what one needs first comes first."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [name for name in COMMANDS if name in self.commands]


def build(words: list[str]) -> typer.Typer:
    """The application, with the one command that the words name, or with all."""
    app = typer.Typer(
        cls=InOrder,
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    named = next((word for word in words if not word.startswith("-")), None)
    modules = [COMMANDS[named]] if named in COMMANDS else list(dict.fromkeys(COMMANDS.values()))
    for module in modules:
        importlib.import_module(module).register(app)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from riverrun import __version__

        print(f"riverrun {__version__}")
        raise typer.Exit


def _root(
    # Eager, or its absence of a command would be an error first.
    _version: bool = typer.Option(
        False,
        "--version",
        is_eager=True,
        callback=_print_version,
        help="Print the version and end.",
    ),
) -> None:
    pass


def main() -> None:
    words = sys.argv[1:]
    if words and words[0] in SPEAK_OF_NAMES:
        for word in words:
            if not word.isascii() and _is_no_text(word):
                print(f"riverrun: {word!a} is not UTF-8 text", file=sys.stderr)
                sys.exit(USAGE)
    build(words)()


def _is_no_text(word: str) -> bool:
    """Python hides bytes that are no text in half surrogate pairs, which no request can carry."""
    return any("\ud800" <= character <= "\udfff" for character in word)
