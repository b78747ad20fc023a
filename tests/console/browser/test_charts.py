"""What charts say about values that are missing, in Chromium."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Route, expect

from tests.console.browser.conftest import OpenPage

pytestmark = pytest.mark.peer

STEP_MS = 10_000
START_MS = 1_750_000_000_000
STEPS = 12


def answer(route: Route) -> None:
    """Produce requests only in the first four steps, fetch requests in all but two."""
    fetched = [(START_MS + step * STEP_MS, 3.5) for step in range(STEPS) if step not in (5, 6)]
    produced = [(START_MS + step * STEP_MS, 276.1) for step in range(4)]
    series = {"produce_p99": {"points": produced}, "fetch_p99": {"points": fetched}}
    for name in ("bytes_in", "bytes_out", "messages_in", "group_lag"):
        series[name] = {"points": [(START_MS + step * STEP_MS, 1.0) for step in range(STEPS)]}
    found = {
        "step_ms": STEP_MS,
        "start_ms": START_MS,
        "end_ms": START_MS + (STEPS - 1) * STEP_MS,
        "series": series,
        "gaps": [{"node": 3, "before_ms": None, "after_ms": None}],
    }
    route.fulfill(content_type="application/json", body=json.dumps(found))


def test_old_latencies_are_not_shown_as_new_ones(open_page: OpenPage) -> None:
    console = open_page("topics")
    console.page.route("**/history?**", answer)
    console.go("overview")
    figure = console.page.get_by_role("figure", name="Latency, 99th percentile")
    expect(figure.locator(".legend")).to_contain_text("Fetch 3.5 ms")
    expect(figure.locator(".legend")).to_contain_text("Produce –")
    rows = figure.locator("table tbody tr")
    expect(rows).to_have_count(STEPS)
    assert "–" in rows.nth(5).inner_text(), "a step without values is a gap"
    traffic = console.page.get_by_role("figure", name="Traffic")
    expect(traffic.locator("table tbody tr")).to_have_count(STEPS)


def test_curves_name_the_nodes_they_lack(open_page: OpenPage) -> None:
    console = open_page("topics")
    console.page.route("**/history?**", answer)
    console.go("overview")
    traffic = console.page.get_by_role("figure", name="Traffic")
    expect(traffic.get_by_text("without node 3")).to_be_visible()
