"""``riverrun cluster``: health, nodes, settings, directories, elections, removal of a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.balance import command as balance_command
from riverrun.cli.cluster.config_command import config_app
from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.completion import topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    AsJson,
    Bootstrap,
    NoHeaders,
    Wide,
    Yes,
    confirm,
    fail,
    parse_topics,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.admin.cluster.report import ClusterReport
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import Layout


def register(app: typer.Typer) -> None:
    cluster = CommandApp(help="Show health and nodes; change settings and leaders.")
    cluster.command("status")(status)
    cluster.command("nodes")(nodes)
    cluster.command("describe")(describe)
    cluster.command("logdirs")(log_directories)
    cluster.add_typer(config_app(), name="config")
    cluster.command("elect-leaders")(elect_leaders)
    balance_command.register(cluster)
    cluster.command("unregister")(unregister)
    app.add_typer(cluster, name="cluster")


def status(
    is_checked: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if the cluster is not healthy.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
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
    from riverrun.admin.cluster.report import nodes_table, status_table
    from riverrun.cli.support.output import Layout

    def tables(report: ClusterReport) -> list[Table]:
        return [status_table(report), nodes_table(report, kind="node")]

    view = View(tables=tables, layout=Layout(has_headings=not no_headers), as_json=as_json)
    _show(bootstrap, view, is_watched=watch, is_checked=is_checked)


def nodes(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    watch: Watch = False,
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
    from riverrun.admin.cluster.report import nodes_table
    from riverrun.cli.support.output import Layout

    view = View(
        tables=lambda report: [nodes_table(report)],
        layout=Layout(has_headings=not no_headers),
        as_json=as_json,
        part="brokers",
    )
    _show(bootstrap, view, is_watched=watch)


def describe(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    wide: Wide = False,
    watch: Watch = False,
) -> None:
    """Show nodes, quorum, features, and partitions that need attention.

    In a pipe each row starts with its kind: cluster, node, quorum, feature, offline or
    out-of-sync. --wide adds the directory ids of the quorum.

    \b
    riverrun cluster describe
    riverrun cluster describe | grep ^offline
    """
    import time

    from riverrun.admin.cluster import report as cluster_report
    from riverrun.admin.quorum.report import quorum_table
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import Layout, is_terminal

    def tables(report: ClusterReport) -> list[Table]:
        status_rows = cluster_report.status_table(report)
        status_rows.kind = "cluster"
        now_ms = int(time.time() * 1000)
        brokers = cluster_report.nodes_table(report, kind="node")
        quorum = quorum_table(report.quorum, now_ms, kind="quorum")
        features = Table(
            kind="feature", columns=("feature", "level"), rows=list(report.features.items())
        )
        shown_max = cluster_report.SHOWN_MAX if is_terminal() else None
        troubles = cluster_report.trouble_tables(report, shown_max=shown_max)
        return [status_rows, brokers, quorum, features, *troubles]

    layout = Layout(has_headings=not no_headers, is_wide=wide)
    view = View(tables=tables, layout=layout, as_json=as_json, with_features=True)
    _show(bootstrap, view, is_watched=watch)


def log_directories(
    node: Annotated[
        int | None, typer.Option("--node", metavar="NODE", min=0, help="Only this node.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    watch: Watch = False,
) -> None:
    """List the data directories with their size, free space and partitions.

    The size is that of all logs in the directory. Free and total are those of its file system. In
    a pipe and with --json, sizes are bytes; --json also lists every partition.

    \b
    riverrun cluster logdirs
    riverrun cluster logdirs --node 2 --json | jq '.[].partitions | max_by(.size_bytes)'
    """
    from riverrun.admin.cluster.log_dirs import ask_directories, directories_table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    def once() -> None:
        rows = run(bootstrap, lambda pool: ask_directories(pool, node))
        if as_json:
            print_json([row.described() for row in rows])
        else:
            print_tables([directories_table(rows)], Layout(has_headings=not no_headers))

    show(once, is_watched=watch)


def elect_leaders(
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1,...]",
            autocompletion=topic_names,
            show_default=False,
            help="Only this topic, or these partitions of it; may be repeated. Default: all.",
        ),
    ] = [],  # noqa: B006 (typer reads it and never changes it)
    is_unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect a replica that is not in sync where no leader is left. Records that it "
            "lacks are lost.",
        ),
    ] = False,
    is_agreed: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Move leadership to the preferred replica of each partition, the first in its list.

    The cluster does this by itself when all replicas of a node that returned are in sync, unless
    auto.leader.rebalance.enable is false; this does it now. With --unclean, partitions without a
    leader get one, at the price of records. It asks on a terminal; elsewhere --unclean needs --yes.
    Exits with 1 if an election fails.

    \b
    riverrun cluster elect-leaders
    riverrun cluster elect-leaders --topic orders --topic clicks:0,2
    riverrun cluster elect-leaders --topic orders:3 --unclean
    """
    from riverrun.admin.cluster.elections import elect, elections_table, plan_elections
    from riverrun.admin.tables import counted
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    wanted = parse_topics(topics)
    plan = run(bootstrap, lambda pool: plan_elections(pool, wanted, is_unclean=is_unclean))
    if is_unclean and plan.changes:
        places = ", ".join(str(change.partition) for change in plan.changes)
        confirm(
            f"Elect leaders that are not in sync for {places}? Records that they lack are lost.",
            is_agreed=is_agreed,
        )
    results = run(bootstrap, lambda pool: elect(pool, plan)) if plan.changes else []
    if as_json:
        print_json([change.described() for change in results])
    elif results:
        print_tables([elections_table(results)], Layout(has_headings=not no_headers))
    else:
        state = "every partition has a leader" if is_unclean else "the preferred replicas lead"
        print(f"Nothing to elect in {counted(plan.partition_count, 'partition')}: {state}.")
    failed = sum(change.failure is not None for change in results)
    if failed:
        fail(f"{counted(failed, 'election')} failed")


def unregister(
    node: Annotated[
        int,
        typer.Argument(metavar="NODE", show_default=False, help="Id of a broker that is gone."),
    ],
    is_agreed: Yes = False,
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
    from riverrun.admin.cluster import admin as cluster_admin
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


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a report is shown."""

    tables: Callable[[ClusterReport], list[Table]]
    layout: Layout
    as_json: bool
    with_features: bool = False
    part: str | None = None
    """The only part of the report that is printed as JSON."""


def _show(bootstrap: str, view: View, *, is_watched: bool, is_checked: bool = False) -> None:
    from riverrun.admin.cluster.report import ask_report
    from riverrun.cli.support.client_config import with_addresses
    from riverrun.cli.support.output import print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    known = bootstrap

    def once() -> None:
        nonlocal known
        report: ClusterReport = run(
            known, lambda pool: ask_report(pool, with_features=view.with_features)
        )
        # A watcher wants to see what happens when the named node dies.
        known = with_addresses(bootstrap, (broker.address for broker in report.brokers))
        if view.as_json:
            described = report.described()
            print_json(described if view.part is None else described[view.part])
        else:
            print_tables(view.tables(report), view.layout)
        if is_checked and report.problems() and not is_watched:
            raise typer.Exit(FAILED)

    show(once, is_watched=is_watched)
