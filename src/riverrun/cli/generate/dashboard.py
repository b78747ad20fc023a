"""The dashboard of Grafana as JSON (schema version 39, Grafana 10 and newer)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from riverrun.cli.generate.catalogue import Catalogue
from riverrun.cli.generate.panels import DashboardRow, Panel, dashboard_rows

SCHEMA_VERSION: Final = 39
UID: Final = "riverrun"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
"""Of Grafana's grid."""
NUMBER_WIDTH: Final = 3
NUMBER_HEIGHT: Final = 4
CHART_WIDTH: Final = 8
CHART_HEIGHT: Final = 7


def dashboard(catalogue: Catalogue, *, title: str) -> dict[str, object]:
    return {
        "uid": UID,
        "title": title,
        "description": "Written by `riverrun generate grafana` from the metrics of this version.",
        "tags": ["riverrun", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _placed(dashboard_rows(catalogue)),
    }


def _variables() -> list[dict[str, object]]:
    source: dict[str, object] = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }
    by_query = [
        ("cluster", "Cluster", "label_values(riverrun_build_info, cluster)"),
        ("node", "Node", 'label_values(riverrun_build_info{cluster=~"$cluster"}, instance)'),
        (
            "topic",
            "Topic",
            'label_values(riverrun_topic_bytes_in_total{cluster=~"$cluster"}, topic)',
        ),
        ("group", "Group", 'label_values(riverrun_group_lag_records{cluster=~"$cluster"}, group)'),
    ]
    return [source, *(_query_variable(*one) for one in by_query)]


def _query_variable(name: str, label: str, query: str) -> dict[str, object]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # It matches series without the label too.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: list[DashboardRow]) -> list[dict[str, object]]:
    """The panels with ids and places on the grid. A collapsed row holds its panels."""
    placed: list[dict[str, object]] = []
    number, top = 1, 0
    for row in rows:
        heading: dict[str, object] = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.is_collapsed,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        panels = list(_panels(row.panels, number + 1, top + 1))
        number += 1 + len(panels)
        placed.append(heading)
        if row.is_collapsed:
            heading["panels"] = panels
            top += 1
        else:
            placed += panels
            top = max(_bottom(panel) for panel in panels)
    return placed


def _bottom(panel: dict[str, object]) -> int:
    place = panel["gridPos"]
    assert isinstance(place, dict)
    return int(place["y"] + place["h"])


def _panels(panels: tuple[Panel, ...], number: int, top: int) -> Iterator[dict[str, object]]:
    """Left to right, line by line. Numbers and charts have lines of their own."""
    x, y, height = 0, top, 0
    for place, panel in enumerate(panels):
        width, wanted = (
            (NUMBER_WIDTH, NUMBER_HEIGHT) if panel.is_number else (CHART_WIDTH, CHART_HEIGHT)
        )
        if x + width > COLUMNS or (height and wanted != height):
            x, y = 0, y + height
        height = wanted
        yield _described(panel, number + place, {"x": x, "y": y, "w": width, "h": wanted})
        x += width


def _described(panel: Panel, number: int, place: dict[str, int]) -> dict[str, object]:
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    if panel.good is not None:
        start, end = panel.good
        steps = [{"color": "red", "value": None}, {"color": "green", "value": start}]
        steps.append({"color": "red", "value": end})
    thresholds = {"mode": "absolute", "steps": steps}
    return {
        "id": number,
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.doc,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": DATASOURCE,
                "expr": curve.expression,
                "legendFormat": curve.legend or "__auto",
                "instant": panel.is_number,
                "range": not panel.is_number,
            }
            for at, curve in enumerate(panel.curves)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": None if panel.title.startswith("Clock") else 0,
                "thresholds": thresholds,
                "noValue": "0" if panel.is_number else "no data",
            },
            "overrides": [],
        },
        "options": _options(panel),
    }


def _options(panel: Panel) -> dict[str, object]:
    if panel.is_number:
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
