"""``riverrun quorum``: show and change the voters of the metadata quorum."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    Bootstrap,
    NoHeaders,
    Wide,
    Yes,
    confirm,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.client.pool import ConnectionPool


def register(app: typer.Typer) -> None:
    quorum = CommandApp(help="Show, add and remove the voters of the metadata quorum.")
    quorum.command("status")(status)
    quorum.command("add")(add)
    quorum.command("remove")(remove)
    app.add_typer(quorum, name="quorum")


def status(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    wide: Wide = False,
    watch: Watch = False,
) -> None:
    """Show voters, observers and their positions.

    Columns: node, role, endpoint, log end offset, lag in records, time of the last fetch, time when
    it was last caught up; with --wide the directory id. The role is leader, follower, observer, or
    silent for a voter that does not respond; its lag is unknown.

    \b
    riverrun quorum status
    riverrun quorum status --watch
    """
    import time

    from riverrun.admin.quorum.report import ask_quorum, quorum_table
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    def once() -> None:
        quorum = run(bootstrap, ask_quorum)
        if as_json:
            print_json(quorum.described())
            return
        table = quorum_table(quorum, int(time.time() * 1000))
        if is_terminal():
            table.title = quorum.in_words()
        print_tables([table], Layout(has_headings=not no_headers, is_wide=wide))

    show(once, is_watched=watch)


def add(
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            show_default=False,
            help="Id of a node that has joined, or HOST:PORT of its controller listener.",
        ),
    ],
    print_properties: Annotated[
        bool,
        typer.Option(
            "--print-properties",
            help="Change nothing; print the properties for Apache's kafka-metadata-quorum "
            "add-controller --command-config. Run that tool on the machine of the node. On a "
            "secure cluster, comments say what to add or to replace.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIRECTORY",
            help="The node's data directory, for --print-properties.",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add a voter to the metadata quorum.

    The node must have joined with the controller role. The change takes effect when a majority of
    the new voters has stored it.

    \b
    riverrun quorum add 4
    riverrun quorum add 4 --print-properties > controller.properties
    """
    from riverrun.admin.quorum.admin import add_voter, find_candidate
    from riverrun.admin.quorum.tool_properties import tool_properties
    from riverrun.cli.support.client_config import login_of
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    if print_properties:
        place = None if data is None else str(data.absolute())
        has_login = bool(login_of(bootstrap))
        lines = run(bootstrap, lambda pool: tool_properties(pool, node, place, has_login=has_login))
        print(lines, end="")
        return

    async def work(pool: ConnectionPool) -> dict[str, object]:
        candidate = await find_candidate(pool, node)
        await add_voter(pool, candidate)
        return candidate.described()

    added = run(bootstrap, work)
    if as_json:
        print_json(added)
        return
    print(f"Node {added['id']} is a voter.")


def remove(
    node: Annotated[int, typer.Argument(metavar="NODE", show_default=False, help="Id of a voter.")],
    is_agreed: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Remove a voter from the metadata quorum.

    Use it for a node that is gone for good or will be removed. If the node runs, it continues as an
    observer. Remove one voter at a time, and add a new one first if you can: with two voters, both
    are needed.

    \b
    riverrun quorum remove 3 --yes
    """
    from riverrun.admin.quorum.admin import find_voter, remove_voter
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    voter = run(bootstrap, lambda pool: find_voter(pool, node))
    confirm(f"Remove node {node} from the voters?", is_agreed=is_agreed)
    run(bootstrap, lambda pool: remove_voter(pool, voter))
    if as_json:
        print_json(voter.described())
        return
    print(f"Node {node} is no longer a voter.")
