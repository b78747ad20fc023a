"""``riverrun cluster``: how a cluster is, of which nodes it consists, and which to forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, FAILED, AsJson, Bootstrap, confirm
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.cli.cluster.report import Report
    from riverrun.cli.support.output import Table


def register(app: typer.Typer) -> None:
    cluster = typer.Typer(
        help="Show how the cluster is, its nodes, and forget one.",
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
        bool, typer.Option("--check", help="End with code 1 if the cluster is not healthy.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    watch: Watch = False,
) -> None:
    """Show in a few lines whether the cluster is well.

    Counts partitions without a leader, with fewer replicas in sync than min.insync.replicas (which
    refuse acks=all), and with any replica out of sync; and names the replica that is furthest
    behind its leader, in records. Then the nodes, as `riverrun cluster nodes` shows them.

    \b
    riverrun cluster status
    riverrun cluster status --watch
    riverrun cluster status --check --json | jq .problems
    """
    from riverrun.cli.cluster.report import nodes_table, status_table

    def tables(report: Report) -> list[Table]:
        return [status_table(report), nodes_table(report, kind="node")]

    _show(bootstrap, tables, as_json=as_json, is_watched=watch, is_checked=is_checked)


def nodes(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False, watch: Watch = False
) -> None:
    """List the brokers, with their state and what they hold.

    Columns: node, address, rack, state (up or fenced), role in the quorum (leader, follower,
    observer or silent), partitions it leads, replicas it holds, replicas of it that are in sync,
    partitions it leads that are short of replicas in sync, and the most records that a replica of
    it lacks, as all nodes say at this moment; ? if it does not answer.

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
    """Show nodes, quorum, features, and what needs care.

    \b
    riverrun cluster describe
    riverrun cluster describe | grep ^offline
    """
    import time

    from riverrun.cli.cluster import report as cluster_report
    from riverrun.cli.quorum.report import quorum_table
    from riverrun.cli.support.output import Table

    def tables(report: Report) -> list[Table]:
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
        typer.Argument(metavar="NODE", show_default=False, help="Number of a broker that is gone."),
    ],
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Forget a broker that is gone for good.

    It must be stopped, and vote no more (riverrun quorum remove). Replicas that it held stay
    assigned to it, and are out of sync until a node with its number comes back.

    \b
    riverrun cluster unregister 4
    riverrun cluster unregister 4 --yes
    """
    from riverrun.cli.cluster import admin as cluster_admin
    from riverrun.cli.support.output import counted, print_json
    from riverrun.cli.support.session import run

    broker = run(bootstrap, lambda pool: cluster_admin.find_gone(pool, node))
    held = f", which holds {counted(broker.holds, 'replica')}" if broker.holds else ""
    confirm(f"Forget node {node}{held}?", is_agreed=is_agreed)
    run(bootstrap, lambda pool: cluster_admin.unregister(pool, broker))
    if as_json:
        print_json({"id": node, "replicas": broker.holds})
        return
    print(f"Node {node} is forgotten.")


def _show(
    bootstrap: str,
    tables: Callable[[Report], list[Table]],
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
        report: Report = run(known, lambda pool: ask_report(pool, with_features=with_features))
        # Whoever watches wants to see what happens when the node that was named dies.
        known = ",".join(dict.fromkeys([bootstrap, *(b.address for b in report.brokers)]))
        if as_json:
            described = report.described()
            print_json(described if part is None else described[part])
        else:
            print_tables(tables(report))
        if is_checked and report.problems() and not is_watched:
            raise typer.Exit(FAILED)

    show(once, is_watched=is_watched)
