"""``riverrun``: finds the command and loads only the modules that it needs.

Loading everything would cost each start a quarter of a second, so the table names modules by text;
only help and shell completion load them all.
"""

from __future__ import annotations

import importlib
import sys

import typer

HELP = """riverrun: a replicated, partitioned log that speaks the Apache Kafka protocol.

Start here:  riverrun up            a cluster on this machine
             riverrun topics list   what it holds
             riverrun produce T     write lines to a topic
             riverrun consume T     read them back
"""

# command -> module with `register(app: typer.Typer) -> None`
COMMANDS = {
    "up": "riverrun.cli.up",
    "start": "riverrun.cli.start",
    "topics": "riverrun.cli.topics",
    "produce": "riverrun.cli.produce",
    "consume": "riverrun.cli.consume",
    "groups": "riverrun.cli.groups",
    "dump-log": "riverrun.cli.dump_log",
    "bench": "riverrun.cli.bench",
    "simulate": "riverrun.simulation.command",
}


def build(words: list[str]) -> typer.Typer:
    """The application, with the one command that the words name, or with all."""
    app = typer.Typer(
        help=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    named = next((word for word in words if not word.startswith("-")), None)
    modules = [COMMANDS[named]] if named in COMMANDS else list(dict.fromkeys(COMMANDS.values()))
    for module in modules:
        importlib.import_module(module).register(app)
    return app


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
) -> None:
    if version:
        from riverrun import __version__

        print(f"riverrun {__version__}")
        raise typer.Exit


def main() -> None:
    # Without a terminal nobody wants colours; typer decides the rest.
    build(sys.argv[1:])()
