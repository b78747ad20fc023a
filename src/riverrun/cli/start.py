"""``riverrun start``: one node in the foreground, from a file, the environment and flags."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    app.command("start")(start)


def start(
    config: Path | None = typer.Option(
        None,
        "--config",
        "-c",
        help="TOML file with settings, such as the ones that `riverrun up` writes.",
    ),
    node_id: int | None = typer.Option(None, "--node-id", help="Number of this node (node.id)."),
    data: Path | None = typer.Option(
        None, "--data", help="Directory for this node's data (log.dirs)."
    ),
    advertised_addr: str | None = typer.Option(
        None, "--advertised-addr", help="HOST:PORT that clients are told to use."
    ),
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="Any setting; may be repeated. See docs/settings.md.",
    ),
) -> None:
    """Start one node and run it until Ctrl-C or SIGTERM.

    Settings come from --config, then RIVERRUN_* variables of the environment, then flags; the
    later win.

    \b
    riverrun start --config data/node-1.toml
    RIVERRUN_LOG_LEVEL=debug riverrun start --data /var/tmp/demo --set num.partitions=3
    """
    from riverrun.cli.options import parse_settings
    from riverrun.model.settings import SettingError
    from riverrun.server.main import REFUSED, run, settings_texts

    flags = parse_settings(settings)
    if node_id is not None:
        flags["node.id"] = str(node_id)
    if data is not None:
        flags["log.dirs"] = str(data)
    if advertised_addr is not None:
        flags["advertised.listeners"] = f"PLAINTEXT://{advertised_addr}"
    try:
        texts = settings_texts(config, flags)
    except SettingError as error:
        print(f"riverrun: {error}", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    raise typer.Exit(run(texts))
