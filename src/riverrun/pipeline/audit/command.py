"""``riverrun audit``: proves that all copies of a partition are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, FAILED, AsJson, Bootstrap, NoHeaders
from riverrun.pipeline.command import Master, check_extra


def register(app: typer.Typer) -> None:
    audit = CommandApp(
        help="Prove that all copies are equal. Needs the extra: pip install 'riverrun[spark]'."
    )
    audit.callback()(lambda: None)
    audit.command("replicas")(replicas)
    app.add_typer(audit, name="audit")


def replicas(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics; all topics by default."),
    ] = None,
    master: Master = "local[*]",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    is_published: Annotated[
        bool, typer.Option("--publish", help="Publish the result to the cluster, for its console.")
    ] = False,
) -> None:
    """Read every copy of every partition from its node, and print each difference.

    Compares offsets, epochs and CRCs of all batches up to the high watermark, and for compacted
    topics the newest value of each key. Exit code 1 if copies differ or one cannot be read.

    \b
    riverrun audit replicas
    riverrun audit replicas orders --master spark://10.0.0.5:7077
    riverrun audit replicas --publish
    """
    check_extra()
    from riverrun.admin.requests import find_topic
    from riverrun.admin.tables import Cell, Table
    from riverrun.cli.support.client_config import login_of
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.client.pool import ConnectionPool
    from riverrun.pipeline.audit.replica_reader import ReplicaCopy
    from riverrun.pipeline.audit.replicas import audit_replicas, find_replicas
    from riverrun.pipeline.run.short_job import run_job

    async def find(pool: ConnectionPool) -> list[ReplicaCopy]:
        for name in topics or []:  # a wrong name must not count as "all equal"
            await find_topic(pool, name)
        return await find_replicas(pool, topics or [])

    copies = run(bootstrap, find)
    outcome = run_job(
        lambda spark: audit_replicas(spark, copies, login_of(bootstrap)),
        app="riverrun audit",
        master=master,
    )
    if as_json:
        print_json(asdict(outcome))
    else:
        print(outcome.summary())
        if outcome.differences:
            rows: list[Sequence[Cell]] = [
                [d.topic, d.partition, d.offset, d.text] for d in outcome.differences
            ]
            columns = ("topic", "partition", "offset", "difference")
            table = Table(columns=columns, rows=rows)
            print_tables([table], Layout(has_headings=not no_headers))
    if is_published:
        from riverrun.cli.support.report_publishing import publish_to

        publish_to(
            bootstrap,
            kind="audit",
            title=f"Replicas of {', '.join(topics) if topics else 'all topics'}",
            verdict=outcome.verdict,
            summary=outcome.summary(),
            content=asdict(outcome),
            is_failed=bool(outcome.differences),
        )
    if outcome.differences:
        raise typer.Exit(FAILED)
