"""Reports that commands publish to a cluster, for the console: chaos runs and audits."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from riverrun.admin.state_records import StateWriter, read_states
from riverrun.admin.times import in_utc
from riverrun.client.pool import ConnectionPool
from riverrun.model.names import REPORTS_TOPIC

CONTENT_BYTES_MAX: Final = 500_000
"""A record is at most 1 MB by default."""
TEXT_CHARACTERS_MAX: Final = 1000


class PublishedReport(Struct, kw_only=True):
    """A report. ``content`` is a JSON object whose form depends on the kind."""

    name: str
    kind: str
    """chaos, audit or bench."""
    title: str
    created_ms: int
    verdict: str
    summary: str
    content: dict[str, Any]


def report_name(kind: str, created_ms: int) -> str:
    """Such as ``chaos-20261118-120000``."""
    moment = in_utc(created_ms)[:19]
    return f"{kind}-{moment.replace('-', '').replace(':', '').replace('T', '-')}"


def limited(report: PublishedReport) -> PublishedReport:
    """The report with fewer rows in its lists, if it is too large for a record."""
    size = len(msgspec.json.encode(report.content))
    content = report.content
    while size > CONTENT_BYTES_MAX:
        longest = max(
            (key for key, value in content.items() if isinstance(value, list)),
            key=lambda key: len(content[key]),
            default=None,
        )
        if longest is None or len(content[longest]) <= 1:
            content = {"is_cut": True}
            break
        half = len(content[longest]) // 2
        content = {**content, longest: content[longest][:half], "is_cut": True}
        size = len(msgspec.json.encode(content))
    return msgspec.structs.replace(
        report, content=content, summary=report.summary[:TEXT_CHARACTERS_MAX]
    )


async def publish_report(pool: ConnectionPool, report: PublishedReport) -> None:
    """Raises KafkaError and OSError."""
    value = msgspec.json.encode(limited(report))
    await StateWriter(pool, REPORTS_TOPIC).put(report.name, value, report.created_ms)


async def read_reports(pool: ConnectionPool) -> dict[str, PublishedReport]:
    """All reports by name. Records of other programs are left out."""
    found: dict[str, PublishedReport] = {}
    for key, record in (await read_states(pool, REPORTS_TOPIC)).items():
        try:
            found[key] = msgspec.json.decode(record.value, type=PublishedReport)
        except msgspec.DecodeError:
            continue
    return found
