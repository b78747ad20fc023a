"""``riverrun docs``: the documentation of the installed version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from riverrun.cli.support.options import NOT_FOUND, AsJson, fail

INDEX = "README"
"""It lists the pages with links, as this command does without them."""
FOLDERS = ("reference", "lab")
"""Generated pages, and results of past runs."""


def register(app: typer.Typer) -> None:
    app.command("docs")(docs)


def docs_folder() -> Path:
    """In a wheel the pages are in the package, in a clone beside ``src``."""
    package = Path(__file__).parents[1]
    bundled = package / "docs"
    return bundled if bundled.is_dir() else package.parents[1] / "docs"


def page_names(incomplete: str = "") -> list[str]:
    folder = docs_folder()
    names = sorted(path.stem for path in folder.glob("*.md") if path.stem != INDEX)
    for name in FOLDERS:
        names += sorted(f"{name}/{path.stem}" for path in (folder / name).glob("*.md"))
    return [name for name in names if name.startswith(incomplete)]


def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAGE]",
            autocompletion=page_names,
            show_default=False,
            help="Page to print. Without it, all pages are listed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the documentation of this version.

    \b
    riverrun docs
    riverrun docs settings | grep retention
    """
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import is_terminal, print_json, print_tables

    if page is None:
        titles = {name: _title(name) for name in page_names()}
        if as_json:
            print_json([{"page": name, "title": title} for name, title in titles.items()])
        else:
            print_tables([Table(columns=("page", "title"), rows=list(titles.items()))])
        return
    name = page.removesuffix(".md")
    if name not in page_names():
        fail(f"there is no page {page}{_hint(name)}; `riverrun docs` lists them", NOT_FOUND)
    text = (docs_folder() / f"{name}.md").read_text()
    if as_json:
        print_json({"page": name, "text": text})
    elif is_terminal():
        import pydoc

        pydoc.pager(text)
    else:
        print(text, end="")


def _title(name: str) -> str:
    lines = (docs_folder() / f"{name}.md").read_text().splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))


def _hint(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, page_names(), n=1)
    return f"; did you mean {near[0]}?" if near else ""
