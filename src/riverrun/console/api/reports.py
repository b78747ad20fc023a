"""Reports of chaos runs and audits that were published to the cluster."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from riverrun.admin.reports import PublishedReport, read_reports
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest

TAG: Final = "reports"
FRESH_SECONDS: Final = 5.0


class ReportItem(Struct, kw_only=True):
    name: str
    kind: str
    """chaos, audit or bench."""
    title: str
    created_ms: int
    verdict: str
    summary: str


class ReportItems(Struct, kw_only=True):
    """Newest first."""

    items: list[ReportItem]
    total: int


class ReportDetails(ReportItem, kw_only=True):
    content: dict[str, Any]


async def list_reports(request: ClusterRequest) -> ReportItems:
    found = sorted((await _reports(request)).values(), key=lambda one: -one.created_ms)
    items = [
        ReportItem(
            name=one.name,
            kind=one.kind,
            title=one.title,
            created_ms=one.created_ms,
            verdict=one.verdict,
            summary=one.summary,
        )
        for one in found
    ]
    return ReportItems(items=items, total=len(items))


async def get_report(request: ClusterRequest) -> ReportDetails:
    name = request.params["name"]
    found = (await _reports(request)).get(name)
    if found is None:
        raise problem(
            "not_found",
            f"There is no report {name}.",
            "Publish one with `riverrun chaos run --publish` or `riverrun audit replicas "
            "--publish`.",
        )
    return ReportDetails(
        name=found.name,
        kind=found.kind,
        title=found.title,
        created_ms=found.created_ms,
        verdict=found.verdict,
        summary=found.summary,
        content=found.content,
    )


async def _reports(request: ClusterRequest) -> dict[str, PublishedReport]:
    return await request.results.get("reports", FRESH_SECONDS, lambda: read_reports(request.pool))


ENDPOINTS: Final = (
    ApiEndpoint("GET", "reports", list_reports, "Published reports", response=ReportItems, tag=TAG),
    ApiEndpoint("GET", "reports/{name}", get_report, "One report", response=ReportDetails, tag=TAG),
)
