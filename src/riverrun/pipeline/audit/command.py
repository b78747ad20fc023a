"""``riverrun audit``: proves that all copies hold the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, FAILED, AsJson, Bootstrap
from riverrun.pipeline.command import Master, check_extra


def register(app: typer.Typer) -> None:
    audit = typer.Typer(
        help="Prove that all copies hold the same. Needs an extra: pip install -e '.[spark]' in a "
        "clone.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    audit.callback()(lambda: None)
    audit.command("replicas")(replicas)
    app.add_typer(audit, name="audit")


def replicas(
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics; all if none is named.")
    ] = None,
    master: Master = "local[*]",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Read all copies of all partitions from their nodes, and name each difference.

    Compares offsets, epochs and CRCs of all batches up to the high watermark; for compacted
    topics the newest value of each key. Ends with code 1 if anything differs or a copy cannot be
    read.

    \b
    riverrun audit replicas
    riverrun audit replicas orders --master spark://10.0.0.5:7077
    """
    check_extra()
    from riverrun.cli.support.output import Cell, Table, print_json, print_tables
    from riverrun.cli.support.session import find_topic, run
    from riverrun.client.pool import ConnectionPool
    from riverrun.pipeline.audit.replica_reader import Copy
    from riverrun.pipeline.audit.replicas import audit, find_copies
    from riverrun.pipeline.run.session import SETTINGS

    async def find(pool: ConnectionPool) -> list[Copy]:
        for name in topics or []:  # no copies are all equal: a wrong name must not pass for that
            await find_topic(pool, name)
        return await find_copies(pool, topics or [])

    copies = run(bootstrap, find)

    from pyspark_riverrun import session

    spark = session(master, "riverrun audit", ui=False, config=SETTINGS)
    outcome = audit(spark, copies)
    spark.stop()
    if as_json:
        print_json(asdict(outcome))
    else:
        print(outcome.in_words())
        rows: list[Sequence[Cell]] = [
            [d.topic, d.partition, d.offset, d.text] for d in outcome.differences
        ]
        columns = ("topic", "partition", "offset", "difference")
        print_tables([Table(columns=columns, rows=rows)])
    if outcome.differences:
        raise typer.Exit(FAILED)
