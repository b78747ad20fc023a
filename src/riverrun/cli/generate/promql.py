"""Expressions of PromQL: the names in them, and how each kind of metric is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from riverrun.cli.generate.catalogue import Catalogue, DeclaredMetric, MetricKind

UP: Final = "up"
"""A series of Prometheus itself for each target: 1 if its last scrape succeeded."""
RATE_INTERVAL: Final = "$__rate_interval"
QUANTILE: Final = 0.99

_IGNORED: Final = re.compile(
    r'"(?:\\.|[^"\\])*"'  # strings
    r"|\{[^}]*\}"  # label matchers; strings in them contain no braces here
    r"|\[[^\]]*\]"  # ranges
    r"|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
    r"|\$\w+"
)
_WORD: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_OPERATORS: Final = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})


def series_names(expression: str) -> list[str]:
    """The names of series in an expression: words that are not functions or operators."""
    text = _IGNORED.sub(" ", expression)
    found = []
    for match in _WORD.finditer(text):
        is_function = text[match.end() :].lstrip().startswith("(")
        is_number = match.start() > 0 and text[match.start() - 1].isdigit()
        if not (is_function or is_number or match[0].lower() in _OPERATORS):
            found.append(match[0])
    return list(dict.fromkeys(found))


def undeclared(expression: str, catalogue: Catalogue) -> list[str]:
    """Names in an expression that no node has."""
    return [
        name
        for name in series_names(expression)
        if name != UP and catalogue.of_series(name) is None
    ]


def shown(
    metric: DeclaredMetric,
    *,
    matchers: Sequence[str],
    by: Sequence[str],
    aggregate: str = "sum",
) -> str:
    """How a metric is drawn: the rate of a counter, the quantile of a histogram, the value of a
    gauge."""
    selected = f"{metric.name}{_braces(matchers)}"
    match metric.kind:
        case MetricKind.COUNTER:
            return _aggregated(aggregate, by, f"rate({selected}[{RATE_INTERVAL}])")
        case MetricKind.HISTOGRAM:
            buckets = f"rate({metric.name}_bucket{_braces(matchers)}[{RATE_INTERVAL}])"
            inner = _aggregated("sum", [*by, "le"], buckets)
            return f"histogram_quantile({QUANTILE}, {inner})"
        case MetricKind.GAUGE:
            return _aggregated(aggregate, by, selected)


def _braces(matchers: Sequence[str]) -> str:
    return f"{{{', '.join(matchers)}}}" if matchers else ""


def _aggregated(aggregate: str, by: Sequence[str], inner: str) -> str:
    return f"{aggregate} by ({', '.join(by)}) ({inner})" if by else f"{aggregate}({inner})"
