"""The site of the documentation: it builds without a warning, and its links and anchors exist."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD_SECONDS_MAX = 100
# Elements that make a browser load something, with the attribute that names it.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
# Python's Markdown shows these as text where GitHub shows a list, a table or code.
BROKEN = re.compile(r"^\s*(- |\d+\. |\||```)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")

pytestmark = pytest.mark.slow


@dataclass
class HtmlPage(HTMLParser):
    """The links, anchors and paragraphs of a page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    is_paragraph: bool = False
    code_depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.anchors.append(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in LOADED and found.get(LOADED[tag]) and found.get("rel") != "canonical":
            self.loaded.append(str(found[LOADED[tag]]))
        if tag == "p":
            self.is_paragraph = True
            self.paragraphs.append("")
        if tag == "code":
            self.code_depth += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self.is_paragraph = False
        if tag == "code":
            self.code_depth -= 1

    def handle_data(self, data: str) -> None:
        if self.is_paragraph:
            self.paragraphs[-1] += "x" if self.code_depth else data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*mkdocs, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, HtmlPage]:
    found: dict[Path, HtmlPage] = {}
    for path in sorted(site.rglob("*.html")):
        found[path] = HtmlPage()
        found[path].feed(path.read_text())
    assert len(found) > 15
    return found


def _targets(path: Path, links: list[str]) -> Iterator[tuple[Path, str]]:
    """The files and anchors that the links of a page name, without those of other sites."""
    for link in links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = path.parent / unquote(parts.path) if parts.path else path
        yield target.resolve(), unquote(parts.fragment)


def test_links_and_anchors_exist(pages: dict[Path, HtmlPage]) -> None:
    known = {path.resolve(): page for path, page in pages.items()}
    for path, page in known.items():
        if path.name == "404.html":  # its links start at the root of a server
            continue
        for target, anchor in _targets(path, page.links):
            assert target.exists(), f"{path.name} links to {target}"
            if anchor and target in known:
                assert anchor in known[target].anchors, f"{path.name} links to {target}#{anchor}"


def test_pages_load_nothing_from_other_hosts(site: Path, pages: dict[Path, HtmlPage]) -> None:
    for path, page in pages.items():
        for address in page.loaded:
            parts = urlsplit(address)
            assert not parts.netloc, f"{path.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style
        assert "@import" not in style.read_text(), style


def test_lists_tables_and_code_are_not_shown_as_text(pages: dict[Path, HtmlPage]) -> None:
    """Python's Markdown needs an empty line before a list, and four spaces inside of one."""
    for path, page in pages.items():
        for paragraph in page.paragraphs:
            assert not BROKEN.search(paragraph), f"{path.name}: {paragraph!r}"


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, HtmlPage]) -> None:
    home = site / "index.html"
    linked = {target for target, _ in _targets(home, pages[home].links)}
    missing = [path for path in pages if path.resolve() not in linked and path.name != "404.html"]
    assert not missing


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_links_of_pages_stay_inside_of_docs(path: Path) -> None:
    """A wheel has the folder docs/ alone, without its images."""
    for link in LINK.findall(path.read_text()):
        target = (path.parent / urlsplit(link).path).resolve()
        if not urlsplit(link).scheme and urlsplit(link).path:
            assert target.is_relative_to(DOCS), f"{path.name} links to {link}"
