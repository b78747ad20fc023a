"""``riverrun top``: live throughput by topic, node and group."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap, NoHeaders

if TYPE_CHECKING:
    from riverrun.cli.top.report import Sample, ThroughputReport
    from riverrun.client.pool import ConnectionPool

GROUP_SECONDS = 10.0
"""The rate of a group is measured over this time, because most clients commit every 5 seconds."""
SAMPLES_MAX = 60
LINES_BESIDE_ROWS = 11
"""Titles, headings and blank lines on the screen."""
SHOWN_MIN = 3


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    is_once: Annotated[
        bool, typer.Option("--once", help="Measure once, for one interval, and exit.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.2, help="Time between measurements."),
    ] = 1.0,
    with_internal: Annotated[
        bool, typer.Option("--internal", help="Include internal topics.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Show live throughput by topic, node and group.

    Ctrl-C or q ends it.

    Topics: records/s from the end offsets, bytes/s from the growth of the leaders' logs on disk.
    Nodes: the same for the partitions that each leads, and the growth of all its replicas. Groups:
    progress of the committed offsets over the last 10 seconds, and lag. In a pipe each row starts
    with its kind: topic, node or group. --json prints one object per measurement.

    \b
    riverrun top
    riverrun top --once | grep ^group
    riverrun top --once --json | jq '.topics[] | {name, records_per_second}'
    """
    import asyncio

    from riverrun.cli.support.client_config import with_addresses
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show
    from riverrun.cli.top.report import ask_sample, throughput

    samples: list[Sample] = []
    known = bootstrap

    async def measure(pool: ConnectionPool) -> None:
        samples.append(await ask_sample(pool))
        if is_once:
            await asyncio.sleep(interval)
            samples.append(await ask_sample(pool))

    def once() -> None:
        nonlocal known
        run(known, measure)
        now = samples[-1]
        _forget_old(samples)
        # The named node may stop while others remain.
        known = with_addresses(bootstrap, now.addresses.values())
        report = throughput(samples, with_internal=with_internal)
        _print(report, as_json=as_json, has_headings=not no_headers)

    show(once, is_watched=not is_once, every_seconds=interval)


def _forget_old(samples: list[Sample]) -> None:
    """Keep the last two samples, and older ones for the rates of groups."""
    since = samples[-1].positions.seconds - GROUP_SECONDS
    while len(samples) > 2 and (samples[0].positions.seconds < since or len(samples) > SAMPLES_MAX):
        del samples[0]


def _print(report: ThroughputReport, *, as_json: bool, has_headings: bool) -> None:
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.cli.top.report import in_words, throughput_tables

    if as_json:
        print_json(report.described())
        return
    shown_max = None
    if is_terminal():
        lines = shutil.get_terminal_size().lines - LINES_BESIDE_ROWS - len(report.nodes)
        shown_max = max(SHOWN_MIN, lines // 2)
        print(in_words(report) + "\n")
    print_tables(throughput_tables(report, shown_max), Layout(has_headings=has_headings))
