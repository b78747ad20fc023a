"""The console's files: vendored code is what upstream published, and the whole stays small."""

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).parents[2] / "src/riverrun/console/static"
VENDOR = STATIC / "vendor"
MANIFEST: dict[str, list[dict[str, Any]]] = json.loads((VENDOR / "manifest.json").read_text())
BYTES_MAX = 300_000
PAGE_BYTES_MAX = 100_000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def served_files() -> list[Path]:
    return sorted(path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".html"})


@pytest.mark.parametrize("entry", MANIFEST["files"], ids=lambda entry: entry["file"])
def test_vendored_file_is_upstream_with_the_documented_changes(entry: dict[str, Any]) -> None:
    content = (VENDOR / entry["file"]).read_bytes()
    assert sha256(content) == entry["sha256"]
    upstream = content.decode().removesuffix(entry["append"])
    for old, new in entry["rewrites"]:
        upstream = upstream.replace(new, old)
    assert sha256(upstream.encode()) == entry["upstream_sha256"]


def test_manifest_lists_every_vendored_file_and_licence() -> None:
    listed = {entry["file"] for entry in MANIFEST["files"] + MANIFEST["licences"]}
    here = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()}
    assert here == listed | {"manifest.json", "README.md"}
    for entry in MANIFEST["licences"]:
        assert sha256((VENDOR / entry["file"]).read_bytes()) == entry["sha256"]


def imported(path: Path, seen: dict[Path, None]) -> dict[Path, None]:
    """A module with everything it imports at once. Pages are imported when they are opened."""
    if path not in seen:
        seen[path] = None
        for name in re.findall(r'\b(?:import|export)\b[^;"(]*"(\.[^"]+)"', path.read_text()):
            imported((path.parent / name).resolve(), seen)
    return seen


def sent_bytes(path: Path) -> int:
    return len(gzip.compress(path.read_bytes()))


def loaded_by(page: Path) -> dict[Path, None]:
    return imported(page.resolve(), imported((STATIC / "app.js").resolve(), {}))


def test_one_page_is_below_300_kilobytes_before_compression() -> None:
    frame = [path for path in served_files() if path.suffix in {".css", ".html"}]
    for page in sorted((STATIC / "pages").glob("*.js")):
        loaded = loaded_by(page)
        sizes = {path.name: path.stat().st_size for path in (*loaded, *frame)}
        assert "uplot.js" in sizes or page.name not in {"overview.js", "group.js"}
        assert sum(sizes.values()) < BYTES_MAX, (page.name, sizes)


def test_all_files_together_are_below_300_kilobytes_as_sent() -> None:
    """Licences and pictures too."""
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(map(sent_bytes, files)) < BYTES_MAX


@pytest.mark.parametrize(
    "page", sorted((STATIC / "pages").glob("*.js")), ids=lambda page: page.stem
)
def test_a_page_loads_what_it_needs_alone(page: Path) -> None:
    frame = ["index.html", "style.css", "vendor/uplot.css", "theme-first.js", "icon.svg"]
    files = [*loaded_by(page), *(STATIC / name for name in frame)]
    assert sum(map(sent_bytes, files)) < PAGE_BYTES_MAX
    has_charts = STATIC / "lib/chart.js" in files
    assert (VENDOR / "uplot.js" in files) is has_charts, "only charts need it"
    assert STATIC / "docs.js" not in files


def test_the_first_modules_are_loaded_at_once() -> None:
    """Without preloading, the browser learns of a module when it has read the one that needs it."""
    page = (STATIC / "index.html").read_text()
    preloaded = set(re.findall(r'"modulepreload" href="/static/VERSION/([^"]+)"', page))
    entry = (STATIC / "app.js").resolve()
    needed = {path.relative_to(STATIC.resolve()).as_posix() for path in imported(entry, {})}
    assert preloaded | {"app.js"} == needed


def test_every_file_is_used() -> None:
    used: dict[Path, None] = {}
    for page in (STATIC / "pages").glob("*.js"):
        used |= loaded_by(page)
    used |= imported((STATIC / "docs.js").resolve(), {})
    scripts = {path.resolve() for path in STATIC.rglob("*.js")}
    beside = {STATIC / "theme-first.js", STATIC / "workers/filter.js"}
    assert scripts - set(used) == {path.resolve() for path in beside}


def test_index_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", page)
    assert "<style" not in page
    assert " style=" not in page
    for reference in re.findall(r'(?:src|href)="/static/VERSION/([^"]+)"', page):
        assert (STATIC / reference).is_file(), reference
