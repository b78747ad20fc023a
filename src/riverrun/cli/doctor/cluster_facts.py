"""Asks a cluster for what the checks need: by Kafka's protocol, and by the nodes' metrics."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from riverrun.cli.doctor.settings_check import NAMES

if TYPE_CHECKING:
    from riverrun.admin.cluster.http_listeners import HttpListener
    from riverrun.client.pool import ConnectionPool

METRICS_SECONDS_MAX: Final = 10.0
METRICS_BYTES_MAX: Final = 256 * 1024 * 1024
_CLOCK: Final = re.compile(r"^riverrun_clock_seconds (\S+)", re.MULTILINE)
_VERSION: Final = re.compile(r'^riverrun_build_info\{[^}]*\bversion="([^"]*)"', re.MULTILINE)
_EXPIRY: Final = re.compile(
    r'^riverrun_certificate_expiry_seconds\{of="([^"]*)"\} (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetrics:
    """What the metrics of one node say."""

    version: str | None
    clock_ahead_seconds: float | None
    """How far the node's clock is ahead of ours."""
    clock_error_seconds: float
    """The request took this long, so the difference is uncertain by it."""
    certificates: Mapping[str, float]
    """Seconds until each certificate expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNode:
    node: int
    rack: str | None
    settings: Mapping[str, str]
    """Empty if the node did not respond."""
    metrics: NodeMetrics | None
    """None if they cannot be read from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    nodes: Sequence[CheckedNode]
    voters: int
    problems: Sequence[str]
    """As `riverrun cluster status` names them."""
    single_replicas: Sequence[str] = field(default=())
    """Topics with partitions of one replica, without internal ones."""


async def ask_cluster(pool: ConnectionPool) -> ClusterFacts:
    from riverrun.admin.broker_settings import ask_broker_settings
    from riverrun.admin.cluster.http_listeners import ask_http_listeners
    from riverrun.admin.cluster.report import ask_report

    report = await ask_report(pool, with_lag=False)
    ids = [broker.id for broker in report.brokers]
    settings = await ask_broker_settings(pool, ids, NAMES)
    listeners = {one.node: one for one in await ask_http_listeners(pool)}
    metrics = await asyncio.gather(*(_ask_metrics(listeners.get(node)) for node in ids))
    topics = (await pool.metadata(None)).topics
    return ClusterFacts(
        nodes=[
            CheckedNode(
                node=broker.id,
                rack=broker.rack,
                settings={
                    name: row.value
                    for name, row in settings.get(broker.id, {}).items()
                    if row.value is not None
                },
                metrics=found,
            )
            for broker, found in zip(report.brokers, metrics, strict=True)
        ],
        voters=len(report.quorum.voters),
        problems=report.problems(),
        single_replicas=[
            topic.name or ""
            for topic in topics
            if not topic.is_internal and any(len(one.replica_nodes) < 2 for one in topic.partitions)
        ],
    )


async def _ask_metrics(listener: HttpListener | None) -> NodeMetrics | None:
    if listener is None or listener.address is None or listener.is_local_only:
        return None
    return await asyncio.to_thread(_read_metrics, f"http://{listener.address}/metrics")


def _read_metrics(url: str) -> NodeMetrics | None:
    began = time.time()
    try:
        with urllib.request.urlopen(url, timeout=METRICS_SECONDS_MAX) as response:
            took = time.time() - began
            text = response.read(METRICS_BYTES_MAX).decode(errors="replace")
    except (OSError, ValueError):
        return None
    return parse_metrics(text, now=began + took / 2, error_seconds=took / 2)


def parse_metrics(text: str, *, now: float, error_seconds: float) -> NodeMetrics:
    """``now`` is our time in the middle of the request."""
    clock, version = _CLOCK.search(text), _VERSION.search(text)
    return NodeMetrics(
        version=None if version is None else version[1],
        clock_ahead_seconds=None if clock is None else float(clock[1]) - now,
        clock_error_seconds=error_seconds,
        certificates={of: float(seconds) for of, seconds in _EXPIRY.findall(text)},
    )
