"""``riverrun cluster``: health, nodes, and removal of a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    AsJson,
    Bootstrap,
    confirm,
    fail,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.cli.cluster.report import ClusterReport
    from riverrun.cli.support.output import Table


def register(app: typer.Typer) -> None:
    cluster = typer.Typer(
        help="Show the health of the cluster and its nodes; unregister a broker.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    cluster.command("status")(status)
    cluster.command("nodes")(nodes)
    cluster.command("describe")(describe)
    cluster.command("unregister")(unregister)
    app.add_typer(cluster, name="cluster")


def status(
    is_checked: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if the cluster is not healthy.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    watch: Watch = False,
) -> None:
    """Show the health of the cluster in a few lines.

    Counts partitions without a leader, partitions under min.insync.replicas (which reject
    acks=all), and under-replicated partitions. Names the replica with the largest lag, in records.
    Then lists the nodes like `riverrun cluster nodes`.

    \b
    riverrun cluster status
    riverrun cluster status --watch
    riverrun cluster status --check --json | jq .problems
    """
    from riverrun.cli.cluster.report import nodes_table, status_table

    def tables(report: ClusterReport) -> list[Table]:
        return [status_table(report), nodes_table(report, kind="node")]

    _show(bootstrap, tables, as_json=as_json, is_watched=watch, is_checked=is_checked)


def nodes(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False, watch: Watch = False
) -> None:
    """List the brokers with their state, leaders and replicas.

    Columns: node, address, rack, state (up or fenced), role in the quorum (leader, follower,
    observer or silent), partitions it leads, replicas it holds, its replicas in sync,
    under-replicated partitions that it leads, and the largest lag of its replicas in records; ? if
    it does not respond.

    \b
    riverrun cluster nodes
    riverrun cluster nodes | awk '$4 == "fenced"'
    """
    from riverrun.cli.cluster.report import nodes_table

    _show(
        bootstrap,
        lambda report: [nodes_table(report)],
        as_json=as_json,
        is_watched=watch,
        part="brokers",
    )


def describe(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False, watch: Watch = False
) -> None:
    """Show nodes, quorum, features, and partitions that need attention.

    \b
    riverrun cluster describe
    riverrun cluster describe | grep ^offline
    """
    import time

    from riverrun.cli.cluster import report as cluster_report
    from riverrun.cli.quorum.report import quorum_table
    from riverrun.cli.support.output import Table

    def tables(report: ClusterReport) -> list[Table]:
        status_rows = cluster_report.status_table(report)
        status_rows.kind = "cluster"
        now_ms = int(time.time() * 1000)
        brokers = cluster_report.nodes_table(report, kind="node")
        quorum = quorum_table(report.quorum, now_ms, kind="quorum")
        features = Table(
            kind="feature", columns=("feature", "level"), rows=list(report.features.items())
        )
        return [status_rows, brokers, quorum, features, *cluster_report.trouble_tables(report)]

    _show(bootstrap, tables, as_json=as_json, is_watched=watch, with_features=True)


def unregister(
    node: Annotated[
        int,
        typer.Argument(metavar="NODE", show_default=False, help="Id of a broker that is gone."),
    ],
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Unregister it even if it holds replicas.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Unregister a broker that is gone for good.

    It must be stopped, must not be a voter (see riverrun quorum remove), and must not hold
    replicas. With --force its replicas stay assigned to it, and they are missing until a node with
    its id rejoins.

    \b
    riverrun cluster unregister 4
    riverrun cluster unregister 4 --force --yes
    """
    from riverrun.cli.cluster import admin as cluster_admin
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    held = run(bootstrap, lambda pool: cluster_admin.find_gone(pool, node))
    if held.count and not is_forced:
        if as_json:
            print_json({**held.described(), "unregistered": False})
        fail(
            f"{held}\n"
            "  Start a node with this id again, or delete these topics, or add --force to "
            "unregister the node nevertheless."
        )
    confirm(f"Unregister {held if held.count else f'node {node}'}?", is_agreed=is_agreed)
    run(bootstrap, lambda pool: cluster_admin.unregister(pool, node))
    if as_json:
        print_json({**held.described(), "unregistered": True})
        return
    print(f"Node {node} is unregistered.")


def _show(
    bootstrap: str,
    tables: Callable[[ClusterReport], list[Table]],
    *,
    as_json: bool,
    is_watched: bool,
    is_checked: bool = False,
    with_features: bool = False,
    part: str | None = None,
) -> None:
    from riverrun.cli.cluster.report import ask_report
    from riverrun.cli.support.output import print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    known = bootstrap

    def once() -> None:
        nonlocal known
        report: ClusterReport = run(
            known, lambda pool: ask_report(pool, with_features=with_features)
        )
        # A watcher wants to see what happens when the named node dies.
        known = ",".join(dict.fromkeys([bootstrap, *(b.address for b in report.brokers)]))
        if as_json:
            described = report.described()
            print_json(described if part is None else described[part])
        else:
            print_tables(tables(report))
        if is_checked and report.problems() and not is_watched:
            raise typer.Exit(FAILED)

    show(once, is_watched=is_watched)
