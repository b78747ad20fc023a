"""Hooks of MkDocs: the documents of the root folder become pages of the site.

They stay where GitHub and editors look for them, so their links are relative to the root folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "README.md",
}
LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for document, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            text = page_of((ROOT / document).read_text())
            files.append(File.generated(config, page, content=text))
    return files


def page_of(text: str) -> str:
    """The text of a document with links that are relative to docs/. Links to files that are not on
    the site become their text."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target:
            return found[0]
        page = PAGES.get(target) or target.removeprefix("docs/")
        if page == target:
            return found["text"].strip("[]")
        return f"{found['text']}({page}{found['anchor'] or ''})"

    return LINK.sub(link, text)
