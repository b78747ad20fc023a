"""Publishes the report of a command to a cluster, for its console."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from riverrun.client.pool import ConnectionPool


def publish_to(
    bootstrap: str,
    *,
    kind: str,
    title: str,
    verdict: str,
    summary: str,
    content: dict[str, Any],
    is_failed: bool,
) -> None:
    """``is_failed``: the command exits with an error of its own. Otherwise it exits with one if the
    report cannot be published."""
    from riverrun.admin.reports import PublishedReport, publish_report, report_name
    from riverrun.cli.support.session import run
    from riverrun.ports.clock import SystemClock

    created_ms = SystemClock().now_ms()
    report = PublishedReport(
        name=report_name(kind, created_ms),
        kind=kind,
        title=title,
        created_ms=created_ms,
        verdict=verdict,
        summary=summary,
        content=content,
    )

    async def publish(pool: ConnectionPool) -> None:
        await publish_report(pool, report)

    try:
        run(bootstrap, publish)
    except typer.Exit:
        if not is_failed:
            raise
        return
    print(f"published as {report.name}", file=sys.stderr, flush=True)
