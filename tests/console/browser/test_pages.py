"""Each page in Chromium, on a real cluster of three nodes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.clusters import Cluster
from tests.console.browser.conftest import OpenPage
from tests.console.browser.pages import PAGES
from tests.processes import until

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_data_without_errors_or_barriers(open_page: OpenPage, name: str) -> None:
    path, heading = PAGES[name]
    console = open_page(path)
    console.expect_heading(heading)
    console.settle()
    assert console.page.locator("main .failure").count() == 0, console.page.inner_text("main")
    assert console.violations() == []
    console.page.emulate_media(color_scheme="dark")
    assert console.violations() == [], "dark"
    assert console.failures == []


@pytest.mark.parametrize("name", ["overview", "topics", "messages", "group", "node"])
def test_page_fits_a_narrow_screen(open_page: OpenPage, name: str) -> None:
    path, heading = PAGES[name]
    console = open_page(path, width=420)
    console.expect_heading(heading)
    console.settle()
    width = console.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 420, f"the page is {width} px wide"


def test_unknown_page_says_so(open_page: OpenPage) -> None:
    console = open_page("nonsense")
    expect(console.page.get_by_role("heading", level=1)).to_be_visible()
    assert "overview" in console.page.content().lower()


def test_palette_finds_a_topic_by_keyboard(open_page: OpenPage) -> None:
    console = open_page("overview")
    console.expect_heading("Overview")
    console.page.keyboard.press("Control+k")
    console.page.keyboard.type("payments")
    found = console.page.get_by_role("option").filter(has_text="payments").first
    expect(found).to_be_visible()
    console.page.keyboard.press("Enter")
    console.expect_heading("payments")


def test_state_of_a_list_is_in_the_address(open_page: OpenPage) -> None:
    console = open_page("topics")
    console.page.get_by_role("searchbox", name="Search topics").fill("paym")
    expect(console.page.get_by_role("link", name="payments", exact=True)).to_be_visible()
    expect(console.page.get_by_role("link", name="orders", exact=True)).to_have_count(0)
    assert "q=paym" in console.page.url
    console.page.reload()
    expect(console.page.get_by_role("searchbox", name="Search topics")).to_have_value("paym")
    expect(console.page.get_by_role("link", name="orders", exact=True)).to_have_count(0)


def test_lag_of_a_group_is_drawn_as_a_curve(open_page: OpenPage) -> None:
    """Two steps of ten seconds are necessary."""
    console = open_page("groups/billing")
    figure = console.page.get_by_role("figure", name="Lag in records")
    expect(figure).to_be_visible(timeout=60_000)
    assert figure.locator("canvas").count() == 1
    assert figure.locator("table tbody tr").count() >= 2, "the values are a table for readers"


def test_overview_draws_throughput_and_lag(open_page: OpenPage) -> None:
    console = open_page("overview")
    for name in ("Traffic", "Records written", "Lag of all groups"):
        figure = console.page.get_by_role("figure", name=name)
        expect(figure.locator("canvas")).to_be_visible(timeout=60_000)


def test_the_tile_of_topics_counts_as_the_list_it_opens(open_page: OpenPage) -> None:
    console = open_page("overview")
    tile = console.page.get_by_role("link").filter(has_text="All topics")
    counted = tile.locator("b, strong, .tile-value").first.inner_text()
    tile.click()
    console.expect_heading("Topics")
    console.settle()
    assert console.page.get_by_label("Internal topics").is_checked()
    rows = console.page.get_by_role("table", name="Topics").locator("tbody tr")
    expect(rows).to_have_count(int(counted))


def test_a_disk_bar_is_named_by_what_it_shows(open_page: OpenPage) -> None:
    console = open_page("nodes")
    bar = console.page.get_by_role("meter", name="Used part of the disk of node 1")
    expect(bar).to_be_visible()
    expect(console.page.get_by_role("columnheader", name="Disk", exact=True)).to_be_visible()
    expect(console.page.get_by_role("cell").filter(has=bar)).to_contain_text("free")


def test_values_of_charts_for_readers_do_not_lengthen_the_page(open_page: OpenPage) -> None:
    """A table ignores a small height, so only a box around it can hide it."""
    console = open_page("groups/billing")
    tables = console.page.locator("figure table")
    expect(tables.first).to_be_attached(timeout=60_000)
    for row in range(tables.count()):
        box = tables.nth(row).locator("xpath=..").bounding_box()
        assert box is not None
        assert box["height"] <= 1


def test_axis_of_a_short_time_names_seconds(open_page: OpenPage) -> None:
    console = open_page("overview")
    source = console.page.locator("link[href$='lib/preact.js']").get_attribute("href")
    module = str(source).replace("preact.js", "format.js")
    texts = console.page.evaluate(
        """async (module) => {
            const { axisClock } = await import(module);
            const noon = new Date(2026, 0, 1, 12, 0, 0).getTime();
            return [axisClock(noon + 10_000, 10), axisClock(noon + 60_000, 60)];
        }""",
        module,
    )
    assert texts == ["12:00:10", "12:01"]


def test_page_survives_the_death_of_its_node(open_page: OpenPage, cluster: Cluster) -> None:
    """The page keeps its data, says that the node is lost, and goes on when it is back. A page of
    another node shows the dead one."""
    mine, other = open_page("overview", node=3), open_page("overview", node=1)
    for console in (mine, other):
        console.expect_heading("Overview")
        console.expect_text("All 3 nodes are alive")
    cluster.nodes[3].kill()
    try:
        console = mine
        console.expect_text("does not respond")
        expect(console.heading("Overview")).to_be_visible()
        other.expect_text("2 / 3")
        expect(other.page.get_by_role("columnheader", name="Leaders")).to_be_visible()
        expect(other.page.get_by_role("columnheader", name="Version")).to_have_count(0)
    finally:
        cluster.nodes[3].restart()
        cluster.wait_healthy()
    expect(mine.page.get_by_text("does not respond").first).to_be_hidden(timeout=60_000)
    mine.expect_text("All 3 nodes are alive")
    until(lambda: not mine.failures, seconds=1, what=f"no errors: {mine.failures}")
