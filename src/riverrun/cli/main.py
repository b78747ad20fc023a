"""``riverrun``: finds the command and loads only the modules that it needs.

Loading all of them takes a quarter of a second, so the table names modules as text. Only help and
shell completion load everything.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer

from riverrun.cli.support.apps import CommandApp, PlainGroup
from riverrun.cli.support.contexts import add_context_options
from riverrun.cli.support.options import USAGE

HELP = """A replicated, partitioned log that speaks the Apache Kafka protocol.

\b
Start here:  riverrun up            a cluster on this machine
             riverrun topics list   its topics
             riverrun produce T     write lines to a topic
             riverrun consume T     read them back

Exit codes: 0 success, 1 failure, 2 invalid flags, settings or data directory, 3 no cluster
responds, 4 a named object does not exist.
"""

# command -> module with `register(app: typer.Typer) -> None`
COMMANDS = {
    "up": "riverrun.cli.up.command",
    "down": "riverrun.cli.up.down",
    "start": "riverrun.cli.start",
    "stop": "riverrun.cli.stop",
    "topics": "riverrun.cli.topics.command",
    "produce": "riverrun.cli.records.produce",
    "consume": "riverrun.cli.records.consume",
    "groups": "riverrun.cli.groups.command",
    "transactions": "riverrun.cli.transactions.command",
    "cluster": "riverrun.cli.cluster.command",
    "quorum": "riverrun.cli.quorum.command",
    "top": "riverrun.cli.top.command",
    "console": "riverrun.cli.console",
    "users": "riverrun.cli.access.users_command",
    "acls": "riverrun.cli.access.acls_command",
    "quotas": "riverrun.cli.access.quotas_command",
    "tokens": "riverrun.cli.access.tokens_command",
    "certs": "riverrun.cli.certs.command",
    "context": "riverrun.cli.context",
    "dump-log": "riverrun.cli.records.dump_log",
    "doctor": "riverrun.cli.doctor.command",
    "generate": "riverrun.cli.generate.command",
    "bench": "riverrun.cli.benchmark.command",
    "pipeline": "riverrun.pipeline.command",
    "audit": "riverrun.pipeline.audit.command",
    "simulate": "riverrun.simulation.command",
    "chaos": "riverrun.chaos.command",
    "docs": "riverrun.cli.docs",
    "version": "riverrun.cli.about",
    "help": "riverrun.cli.about",
}

COMMANDS_WITH_NAMES = ("topics", "produce", "consume", "groups", "transactions", "cluster")


class RootCommand(PlainGroup):
    """Lists the commands in help in the order of the table. Commands that talk to a cluster get
    the option ``--context``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        add_context_options(self)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [name for name in COMMANDS if name in self.commands]


def build(words: list[str]) -> typer.Typer:
    """The application with the named command, or with all commands."""
    app = CommandApp(
        cls=RootCommand,
        help=HELP,
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
    # Eager, because otherwise the missing command would be reported first.
    _version: bool = typer.Option(
        False,
        "--version",
        is_eager=True,
        callback=_print_version,
        help="Print the version and exit.",
    ),
) -> None:
    pass


def main() -> None:
    words = sys.argv[1:]
    if words and words[0] in COMMANDS_WITH_NAMES:
        for word in words:
            if not word.isascii() and _is_no_text(word):
                print(f"riverrun: {word!a} is not UTF-8 text", file=sys.stderr)
                sys.exit(USAGE)
    build(words)()


def _is_no_text(word: str) -> bool:
    """Whether the word contains bytes that are not UTF-8; Python maps them to lone surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in word)
