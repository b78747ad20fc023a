"""Rates, latencies and lags of the last 24 hours, from the memory of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from riverrun.console.api.history_book import HistoryBook, KeptPoints, NodePoints, SeriesKey
from riverrun.console.cluster_facts import SharedFacts
from riverrun.console.node_queries import ask_all, ask_one
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest

TAG: Final = "history"
SERIES: Final = (
    "bytes_in", "bytes_out", "messages_in", "requests", "produce_p99", "fetch_p99",
    "under_replicated", "connections", "cpu", "memory", "disk_used", "group_lag",
)  # fmt: skip
TOPIC_SERIES: Final = ("bytes_in", "bytes_out", "messages_in")
GROUP_SERIES: Final = ("lag", "lag_seconds")
MAXIMA: Final = ("produce_p99", "fetch_p99", "lag_seconds")
"""Series whose highest value counts. Others are added up over the nodes."""
MINUTES_MAX: Final = 1440
ALWAYS: Final = "connections"
"""A series in which a node has a value at each step, so it shows since when there are values."""
STEP_MS_DEFAULT: Final = 10_000


class SeriesQuery(Struct, kw_only=True):
    """``node``, ``topic`` and ``group`` choose whose history it is; by default the cluster's."""

    series: str = ""
    """Names, separated by commas. Empty: all."""
    minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 60
    step_seconds: Annotated[int, Meta(ge=10, le=3600)] | None = None
    """The time between two points. By default as short as is reasonable."""
    node: int | None = None
    topic: str | None = None
    group: str | None = None


class SeriesPoints(Struct, kw_only=True):
    points: list[tuple[int, float]]
    """Time in ms, and value."""


class HistoryGap(Struct, kw_only=True):
    """A node whose values are missing: before a time, after a time, or all of them."""

    node: int
    before_ms: int | None = None
    after_ms: int | None = None


class HistorySeries(Struct, kw_only=True):
    """Rates are per second, latencies in ms, CPU in percent of one core, sizes in bytes, lags in
    records. ``group_lag`` is that of all groups together. A step without a value has no point.

    The values of a node that does not respond are those it gave the console before."""

    step_ms: int
    start_ms: int | None
    """The first step with values; null if there are none."""
    end_ms: int | None
    """The newest step."""
    series: dict[str, SeriesPoints]
    gaps: list[HistoryGap] = field(default_factory=list)


async def get_history(request: ClusterRequest) -> HistorySeries:
    query: SeriesQuery = request.query
    names = wanted_series(query)
    is_of_nodes = query.topic is None and query.group is None
    all_names = list(dict.fromkeys([*names, ALWAYS])) if is_of_nodes else names
    asked = {
        "series": all_names,
        "minutes": query.minutes,
        "step_seconds": query.step_seconds,
        "topic": query.topic,
        "group": query.group,
    }
    expected: list[int] = []
    if query.node is not None:
        answer = await ask_one(request, query.node, "history", asked, NodePoints)
        answers = {query.node: answer}
    else:
        answers = await ask_all(request, "history", asked, NodePoints)
        brokers = await SharedFacts(request.connected).brokers()
        expected = [broker.broker_id for broker in brokers]
    book: HistoryBook = await request.results.get("history book", inf, _new_book)
    step_ms = max((one.step_ms for one in answers.values()), default=STEP_MS_DEFAULT)
    same = {node: one for node, one in answers.items() if one.step_ms == step_ms}
    known = {
        name: book.add(SeriesKey(name, step_ms, query.topic, query.group), same)
        for name in all_names
    }
    if query.node is not None:
        known = {name: {query.node: nodes[query.node]} for name, nodes in known.items()}
    return drawn(names, known, answers, expected, step_ms)


async def _new_book() -> HistoryBook:
    return HistoryBook()


def drawn(
    names: Iterable[str],
    known: Mapping[str, Mapping[int, KeptPoints]],
    answers: Mapping[int, NodePoints],
    expected: Iterable[int],
    step_ms: int,
) -> HistorySeries:
    """The points of all nodes in the time of the answers."""
    first_ms = min((one.first_ms for one in answers.values()), default=0)
    end_ms = common_end(answers.values(), step_ms)
    series = {
        name: [point for point in joined(name, nodes.values()) if first_ms <= point[0] < end_ms]
        for name, nodes in known.items()
    }
    moments = [moment for points in series.values() for moment, _ in points]
    start_ms = min(moments, default=None)
    found = HistorySeries(
        step_ms=step_ms,
        start_ms=start_ms,
        end_ms=None if start_ms is None else end_ms - step_ms,
        series={name: SeriesPoints(points=series[name]) for name in names},
    )
    if start_ms is not None:
        always = known.get(ALWAYS)
        for node in expected:
            if always is not None:
                gap = _gap(node, always.get(node), start_ms, end_ms)
            else:
                # A node has no values of topics and groups that it does not lead.
                every = [nodes[node] for nodes in known.values() if node in nodes]
                ends = [points.end_ms for points in every]
                gap = None
                if node not in answers:
                    after_ms = max(ends, default=start_ms)
                    gap = HistoryGap(node=node, after_ms=after_ms if after_ms > start_ms else None)
            if gap is not None:
                found.gaps.append(gap)
    return found


def common_end(answers: Iterable[NodePoints], step_ms: int) -> int:
    """The end of the newest step that all nodes have added, so that no share of it is missing. A
    node that lags further behind does not hold back the others."""
    ends = [
        one.first_ms + len(values) * one.step_ms
        for one in answers
        for values in one.series.values()
        if values
    ]
    return max(min(ends, default=0), max(ends, default=0) - step_ms)


def _gap(node: int, points: KeptPoints | None, start_ms: int, end_ms: int) -> HistoryGap | None:
    """Where the values of a node are missing. Two steps are less than a pause of its process."""
    values = [] if points is None else points.known()
    moments = [moment for moment, _ in values if start_ms <= moment < end_ms]
    if points is None or not moments:
        return HistoryGap(node=node)
    late, early = 2 * points.step_ms, end_ms - 2 * points.step_ms
    before_ms = moments[0] if moments[0] - start_ms > late else None
    after_ms = moments[-1] + points.step_ms if moments[-1] < early else None
    if before_ms is None and after_ms is None:
        return None
    return HistoryGap(node=node, before_ms=before_ms, after_ms=after_ms)


def wanted_series(query: SeriesQuery) -> list[str]:
    if query.topic is not None and query.group is not None:
        raise problem("invalid", "The history is of a topic or of a group, not of both.")
    known: tuple[str, ...] = SERIES
    if query.topic is not None:
        known = TOPIC_SERIES
    elif query.group is not None:
        known = GROUP_SERIES
    names = [name.strip() for name in query.series.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise problem(
                "invalid", f"There is no series {name[:50]} here.", f"Use {', '.join(known)}."
            )
    return list(dict.fromkeys(names))


def joined(name: str, nodes: Iterable[KeptPoints]) -> list[tuple[int, float]]:
    """The values of all nodes at each moment, as one."""
    values: dict[int, list[float]] = {}
    for points in nodes:
        for moment, value in points.known():
            values.setdefault(moment, []).append(value)
    join = max if name in MAXIMA else sum
    return [(moment, join(values[moment])) for moment in sorted(values)]


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "history",
        get_history,
        "Rates, latencies and lags over time",
        query=SeriesQuery,
        response=HistorySeries,
        tag=TAG,
    ),
)
