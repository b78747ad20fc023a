"""The pages in the wheel: small, without images, and with links that lead to other pages in it."""

import re
import zipfile
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest

from tests.installed import Distributions

FOLDER = PurePosixPath("riverrun/docs")
BYTES_MAX = 1_000_000
IMAGES = ("images",)
"""Folders of docs/ that only the site has."""
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")

pytestmark = pytest.mark.slow


def test_pages_of_the_wheel_link_to_pages_of_the_wheel(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        sizes = {PurePosixPath(each.filename): each.file_size for each in wheel.infolist()}
        found = {path: size for path, size in sizes.items() if path.is_relative_to(FOLDER)}
        assert FOLDER / "runbooks.md" in found and FOLDER / "reference" / "commands.md" in found
        assert not [path for path in found if path.relative_to(FOLDER).parts[0] in IMAGES]
        assert sum(found.values()) < BYTES_MAX
        for path in found:
            if path.suffix == ".md":
                _check_links(path, wheel.read(str(path)).decode(), found)


def _check_links(page: PurePosixPath, text: str, found: dict[PurePosixPath, int]) -> None:
    for mark, link in LINK.findall(text):
        parts = urlsplit(link)
        is_image = mark == "!" and parts.path.startswith(IMAGES)
        if parts.scheme or not parts.path or is_image:
            continue
        folder = page.parent
        target = parts.path
        while target.startswith("../"):
            folder, target = folder.parent, target.removeprefix("../")
        assert folder / target in found, f"{page.name} links to {link}"
