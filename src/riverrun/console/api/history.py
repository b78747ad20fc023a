"""Rates, latencies and lags of the last 24 hours, from the memory of the nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

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


class NodePoints(Struct, kw_only=True):
    """The answer of a node."""

    step_ms: int
    first_ms: int
    series: dict[str, list[float | None]]


class SeriesPoints(Struct, kw_only=True):
    points: list[tuple[int, float]]
    """Time in ms, and value."""


class HistorySeries(Struct, kw_only=True):
    """Rates are per second, latencies in ms, CPU in percent of one core, sizes in bytes, lags in
    records. ``group_lag`` is that of all groups together."""

    step_ms: int
    series: dict[str, SeriesPoints]


async def get_history(request: ClusterRequest) -> HistorySeries:
    query: SeriesQuery = request.query
    names = wanted_series(query)
    asked = {
        "series": names,
        "minutes": query.minutes,
        "step_seconds": query.step_seconds,
        "topic": query.topic,
        "group": query.group,
    }
    if query.node is not None:
        answers = [await ask_one(request, query.node, "history", asked, NodePoints)]
    else:
        answers = list((await ask_all(request, "history", asked, NodePoints)).values())
    return HistorySeries(
        step_ms=max((one.step_ms for one in answers), default=10_000),
        series={name: SeriesPoints(points=joined(name, answers)) for name in names},
    )


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


def joined(name: str, answers: Iterable[NodePoints]) -> list[tuple[int, float]]:
    """The values of all nodes at each moment, as one."""
    values: dict[int, list[float]] = {}
    for answer in answers:
        for place, value in enumerate(answer.series.get(name, ())):
            if value is not None:
                moment = answer.first_ms + place * answer.step_ms
                values.setdefault(moment, []).append(value)
    moments = sorted(values)
    if len(moments) > 1 and len(values[moments[-1]]) < len(values[moments[-2]]):
        moments.pop()  # some nodes have not added the newest step yet: their share is missing
    join = max if name in MAXIMA else sum
    return [(moment, join(values[moment])) for moment in moments]


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
