"""The console's files: vendored code is what upstream published, and the whole stays small."""

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


def test_all_files_together_stay_below_300_kilobytes() -> None:
    sizes = {str(path.relative_to(STATIC)): path.stat().st_size for path in served_files()}
    assert sum(sizes.values()) < BYTES_MAX, sizes


def test_index_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", page)
    assert "<style" not in page
    assert " style=" not in page
    for reference in re.findall(r'(?:src|href)="/static/VERSION/([^"]+)"', page):
        assert (STATIC / reference).is_file(), reference
