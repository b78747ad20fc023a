"""``riverrun context``: names for clusters, so that commands need no addresses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.contexts import (
    NAME,
    Chosen,
    address_of,
    choose,
    config_path,
    context_names,
    edited_config,
    read_config,
    report_unknown,
)
from riverrun.cli.support.options import FAILED, USAGE, AsJson, fail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NewName = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
KnownName = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=context_names, show_default=False)
]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="NAME", autocompletion=context_names, show_default=False)
]


def register(app: typer.Typer) -> None:
    context = CommandApp(help="Name clusters, and choose the one that commands use.")
    for name, command in (
        ("add", add),
        ("use", use),
        ("list", list_contexts),
        ("show", show),
        ("remove", remove),
    ):
        context.command(name)(command)
    app.add_typer(context, name="context")


def add(
    name: NewName,
    address: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            show_default=False,
            help="Address of a node of the cluster, or several separated by commas.",
        ),
    ],
    is_used: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    is_replaced: Annotated[
        bool, typer.Option("--replace", help="Change the address of an existing context.")
    ] = False,
) -> None:
    """Give a cluster a name.

    The file is RIVERRUN_CONFIG, or riverrun/config.toml in XDG_CONFIG_HOME (~/.config).

    \b
    riverrun context add staging --bootstrap 10.0.0.1:9092,10.0.0.2:9092 --use
    riverrun topics list
    riverrun topics list --context production
    """
    from riverrun.client.pool import parse_bootstrap

    if not NAME.fullmatch(name):
        fail(f"{name!r}: a name has up to 64 letters, digits, '.', '_' and '-'", USAGE)
    try:
        parse_bootstrap(address)
    except ValueError as error:
        fail(f"--bootstrap: {error}", USAGE)
    path = config_path(os.environ)
    with edited_config(path) as document:
        known = document.setdefault("contexts", {})
        if name in known and not is_replaced:
            fail(f"context {name} exists already in {path}; change it with --replace", FAILED)
        known.setdefault(name, {})["bootstrap"] = address
        if is_used:
            document["current"] = name
    current = is_used or read_config(path).get("current") == name
    hint = "it is the current context" if current else f"use it with `riverrun context use {name}`"
    print(f"Context {name} is {address}; {hint}.")


def use(
    name: OptionalName = None,
    is_none: Annotated[bool, typer.Option("--none", help="Have no current context.")] = False,
) -> None:
    """Choose the context of the commands that name no cluster.

    \b
    riverrun context use staging
    riverrun context use --none
    """
    if (name is None) != is_none:
        fail("name a context, or use --none", USAGE)
    path = config_path(os.environ)
    if name is not None:
        address_of(read_config(path), name, path)
    with edited_config(path) as document:
        document.pop("current", None)
        if name is not None:
            document["current"] = name
    if name is None:
        print("There is no current context.")
    else:
        print(f"{name} is the current context.")


def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts.

    Plain rows: name, address, and `yes` for the context that commands use by default.

    \b
    riverrun context list
    """
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import print_json, print_tables

    path = config_path(os.environ)
    content = read_config(path)
    rows = [
        (name, _bootstrap(found)) for name, found in sorted(content.get("contexts", {}).items())
    ]
    current = content.get("current")
    if as_json:
        print_json(
            {
                "file": str(path),
                "current": current,
                "contexts": [{"name": name, "bootstrap": address} for name, address in rows],
            }
        )
        return
    empty = "There are no contexts. Add one with `riverrun context add NAME --bootstrap HOST:PORT`."
    table = Table(columns=("context", "bootstrap", "current"), empty=empty)
    table.rows += [(name, text, "yes" if name == current else None) for name, text in rows]
    print_tables([table])


def show(name: OptionalName = None, as_json: AsJson = False) -> None:
    """Show a context, or the cluster that commands use now and why.

    \b
    riverrun context show
    riverrun context show staging
    """
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import print_json, print_tables

    path = config_path(os.environ)
    if name is None:
        chosen = choose(os.environ, None)
    else:
        address = address_of(read_config(path), name, path)
        chosen = Chosen(address=address, source=str(path), context=name)
    if as_json:
        print_json(
            {"context": chosen.context, "bootstrap": chosen.address, "source": chosen.source}
        )
        return
    rows = [("context", chosen.context), ("bootstrap", chosen.address), ("source", chosen.source)]
    print_tables([Table(columns=("", ""), rows=list(rows))])


def remove(name: KnownName) -> None:
    """Remove a context. The cluster is not affected.

    \b
    riverrun context remove staging
    """
    path = config_path(os.environ)
    with edited_config(path) as document:
        known = document.get("contexts", {})
        if name not in known:
            report_unknown(name, list(known), path)
        del known[name]
        was_current = document.get("current") == name
        if was_current:
            del document["current"]
    print(f"Removed context {name}." + (" There is no current context now." if was_current else ""))


def _bootstrap(context: Mapping[str, Any]) -> str | None:
    address = context.get("bootstrap")
    return address if isinstance(address, str) else None
