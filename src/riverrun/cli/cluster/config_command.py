"""``riverrun cluster config``: settings of all brokers or of one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.completion import setting_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    Bootstrap,
    NoHeaders,
    Wide,
    parse_settings,
    warn,
)

if TYPE_CHECKING:
    from riverrun.admin.cluster.configs import SettingsChange
    from riverrun.client.pool import ConnectionPool

Node = Annotated[
    int | None,
    typer.Option(
        "--node", metavar="NODE", help="Only this node; default: the whole cluster.", min=0
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Let the cluster check the change, and change nothing.")
]


def config_app() -> CommandApp:
    config = CommandApp(help="Show and change settings of the cluster or of one broker.")
    config.command("get")(get)
    config.command("set")(set_values)
    config.command("unset")(unset)
    return config


def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=setting_names,
            show_default=False,
            help="Settings; see also --all.",
        ),
    ] = None,
    node: Node = None,
    with_defaults: Annotated[
        bool, typer.Option("--all", help="Include settings with their default value.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    wide: Wide = False,
) -> None:
    """Show settings with their value, source and default.

    Without names: the settings that were changed at run time, or with --node those of the node that
    are not the default. A value that is the same on all nodes is one row. A read-only setting
    comes from the file of a node and changes with a restart. --wide adds type and documentation.

    \b
    riverrun cluster config get
    riverrun cluster config get min.insync.replicas
    riverrun cluster config get --node 2
    riverrun cluster config get --all | grep retention
    """
    from riverrun.admin.cluster.configs import ask_settings, settings_table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    report = run(
        bootstrap, lambda pool: ask_settings(pool, node, names or [], with_defaults=with_defaults)
    )
    for silent in report.silent:
        print(f"riverrun: node {silent} does not respond: not shown", file=sys.stderr)
    if as_json:
        print_json([row.described() for row in report.rows])
        return
    layout = Layout(has_headings=not no_headers, is_wide=wide)
    print_tables([settings_table(report)], layout)


def set_values(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE",
            autocompletion=setting_names,
            show_default=False,
            help="Settings to change.",
        ),
    ],
    node: Node = None,
    dry_run: DryRun = False,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Set a name that the nodes do not know.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change settings at run time, for the whole cluster or for one node.

    A value for one node takes precedence over the cluster's, and both over the node's file. All
    changes are applied, or none.

    \b
    riverrun cluster config set min.insync.replicas=2
    riverrun cluster config set log.retention.ms=86400000 --dry-run
    riverrun cluster config set log.cleaner.threads=2 --node 3
    """
    from riverrun.admin.cluster.configs import SettingsChange

    change = SettingsChange(node=node, values=parse_settings(settings, ""))
    _apply(change, bootstrap, dry_run=dry_run, is_forced=is_forced, as_json=as_json)


def unset(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            autocompletion=setting_names,
            show_default=False,
            help="Settings to reset.",
        ),
    ],
    node: Node = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Remove settings that were changed at run time.

    Then the value of the next source applies: the cluster's, the one in the node's file, or the
    default.

    \b
    riverrun cluster config unset log.retention.ms
    riverrun cluster config unset log.cleaner.threads --node 3
    """
    from riverrun.admin.cluster.configs import SettingsChange

    change = SettingsChange(node=node, values=dict.fromkeys(names))
    _apply(change, bootstrap, dry_run=dry_run, is_forced=True, as_json=as_json)


def _apply(
    change: SettingsChange, bootstrap: str, *, dry_run: bool, is_forced: bool, as_json: bool
) -> None:
    from riverrun.admin.cluster.configs import change_settings, warnings_of
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    async def changed(pool: ConnectionPool) -> tuple[list[str], list[str]]:
        missing = await change_settings(
            pool, change, validate_only=dry_run, may_be_unknown=is_forced
        )
        return missing, await warnings_of(pool, change)

    missing, warnings = run(bootstrap, changed)
    for text in warnings:
        warn(text)
    if as_json:
        print_json({"node": change.node, "settings": change.values, "executed": not dry_run})
        return
    for name, value in change.values.items():
        if value is not None:
            print(f"{name} = {value} for {change.place}")
        elif name in missing:
            print(f"{name} was not set for {change.place}")
        else:
            print(f"{name} is no longer set for {change.place}")
    if dry_run:
        print("The change is valid. Nothing was changed.")
