"""An SVG chart of a run: throughput over time, faults of each node, and pauses in red."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from riverrun.chaos.checks.availability import silences, throughput
from riverrun.chaos.history import Action, Operation, OperationKind

WIDTH, CHART_HEIGHT, LANE_HEIGHT = 960, 150, 18
LEFT, RIGHT, TOP = 64, 12, 16
SLICES_MAX = 240
COLOURS = {
    "killed": "#b91c1c",
    "stopped": "#d97706",
    "paused": "#7c3aed",
    "cut off": "#0369a1",
    "mute": "#0891b2",
    "deaf": "#0e7490",
    "slow": "#65a30d",
    "impaired": "#a16207",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A period in which a node had a fault."""

    node: int
    state: str
    start: float
    end: float


def node_spans(operations: Sequence[Operation], end: float) -> list[Span]:
    """The fault periods of all nodes; an operation without a state ends the previous fault."""
    spans: list[Span] = []
    since: dict[int, tuple[str, float]] = {}
    for operation in operations:
        if operation.action is not Action.FAULT:
            continue
        state, start = since.pop(operation.node, ("", 0.0))
        if state:
            spans.append(Span(node=operation.node, state=state, start=start, end=operation.time))
        since[operation.node] = (operation.value, operation.time)
    for node, (state, start) in since.items():
        if state:
            spans.append(Span(node=node, state=state, start=start, end=end))
    return spans


def draw(operations: Sequence[Operation]) -> str:
    """The whole chart, to embed in a page."""
    end = max((operation.time for operation in operations), default=1.0) + 0.1
    spans = node_spans(operations, end)
    nodes = sorted({span.node: None for span in spans})
    height = TOP + CHART_HEIGHT + LANE_HEIGHT * len(nodes) + 34

    def x(time: float) -> float:
        return LEFT + time / end * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg" '
        'font-family="system-ui, sans-serif" font-size="11">',
        "<title>Throughput and faults over time</title>",
    ]
    for window in silences(operations):
        parts.append(
            f'<rect x="{x(window.start):.1f}" y="{TOP}" fill="#fecaca" opacity="0.7" '
            f'width="{max(x(window.end) - x(window.start), 1):.1f}" height="{CHART_HEIGHT}">'
            f"<title>{window.seconds:.2f} s without an acknowledgement</title></rect>"
        )
    parts += _curves(operations, end)
    parts += _lanes(spans, nodes, end)
    parts += _axis(end, TOP + CHART_HEIGHT + LANE_HEIGHT * len(nodes) + 16)
    parts.append("</svg>")
    return "\n".join(parts)


def _curves(operations: Sequence[Operation], end: float) -> list[str]:
    width = max(end / SLICES_MAX, 0.1)
    acknowledged = [
        o.time for o in operations if o.action is Action.SEND and o.kind is OperationKind.OK
    ]
    read = [o.time for o in operations if o.action is Action.READ and o.group for _ in o.records]
    curves = {
        "#2563eb": throughput(acknowledged, end=end, slice_seconds=width),
        "#16a34a": [rate / 2 for rate in throughput(read, end=end, slice_seconds=width)],
    }
    top = max((rate for rates in curves.values() for rate in rates), default=1.0) or 1.0
    # Clip the burst after a fault, so that the usual rate stays visible.
    usual = sorted(curves["#2563eb"])[int(len(curves["#2563eb"]) * 0.9)] or top
    top = min(top, usual * 2.5)
    base = TOP + CHART_HEIGHT
    parts = [
        f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}" stroke="currentColor"/>',
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end" fill="currentColor">{top:.0f}/s'
        "</text>",
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end" fill="currentColor">0</text>',
    ]
    step = (WIDTH - LEFT - RIGHT) / end * width
    for colour, rates in curves.items():
        points = " ".join(
            f"{LEFT + (place + 0.5) * step:.1f},{base - min(rate / top, 1.0) * CHART_HEIGHT:.1f}"
            for place, rate in enumerate(rates)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    for place, (colour, text) in enumerate(
        (("#2563eb", "acknowledged"), ("#16a34a", "read by each group"))
    ):
        parts.append(
            f'<text x="{WIDTH - RIGHT - 8 - 110 * place}" y="{TOP - 4}" fill="{colour}" '
            f'text-anchor="end">{text}</text>'
        )
    return parts


def _lanes(spans: list[Span], nodes: list[int], end: float) -> list[str]:
    parts: list[str] = []
    scale = (WIDTH - LEFT - RIGHT) / end
    for place, node in enumerate(nodes):
        y = TOP + CHART_HEIGHT + 4 + LANE_HEIGHT * place
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 11}" text-anchor="end" fill="currentColor">'
            f"node {node}</text>"
        )
        for span in (span for span in spans if span.node == node):
            width = max((span.end - span.start) * scale, 2)
            label = escape(span.state) if width > 40 else ""
            parts.append(
                f'<g><rect x="{LEFT + span.start * scale:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{LANE_HEIGHT - 4}" rx="2" fill="{COLOURS.get(span.state, "#555")}">'
                f"<title>node {node} {escape(span.state)} for {span.end - span.start:.2f} s</title>"
                f'</rect><text x="{LEFT + span.start * scale + 4:.1f}" y="{y + 11}" fill="#fff">'
                f"{label}</text></g>"
            )
    return parts


def _axis(end: float, y: float) -> list[str]:
    steps = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
    step = next((candidate for candidate in steps if end / candidate <= 14), 600)
    parts = []
    for number in range(int(end / step) + 1):
        x = LEFT + number * step / end * (WIDTH - LEFT - RIGHT)
        parts.append(
            f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="currentColor">'
            f"{number * step:g} s</text>"
        )
    return parts
