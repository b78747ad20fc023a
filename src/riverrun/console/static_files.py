"""The pages and their files. File addresses contain the version, so browsers keep them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import riverrun
from riverrun.console.problems import problem
from riverrun.console.routing import API_ROOT, problem_response

FOLDER: Final = Path(__file__).parent / "static"
VERSION_MARK: Final = "/VERSION/"
PAGES: Final = "/ui/"
IMMUTABLE: Final = "public, max-age=31536000, immutable"
REVALIDATE: Final = "no-cache"
WORKERS: Final = "workers/"
WORKER_POLICY: Final = "default-src 'none'; script-src 'self' 'unsafe-eval'"
"""Workers run the filters that users type. They have no network and no access to the page."""
TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".txt": "text/plain",
    ".md": "text/plain",
}


def routes() -> Sequence[BaseRoute]:
    return (
        Route("/", _root),
        Route("/ui", _root),
        Route("/ui/{rest:path}", _page),
        Route(f"{API_ROOT}/docs", _docs),
        Route("/static/{version}/{rest:path}", _file),
    )


async def _root(_: Request) -> Response:
    return RedirectResponse(PAGES)


async def _page(_: Request) -> Response:
    return _html("index.html")


async def _docs(_: Request) -> Response:
    return _html("docs.html")


def _html(name: str) -> Response:
    path = FOLDER / name
    if not path.is_file():
        return problem_response(problem("not_found", f"This version has no {name}."))
    text = path.read_text(encoding="utf-8").replace(VERSION_MARK, f"/{version()}/")
    return Response(text, media_type="text/html", headers={"Cache-Control": REVALIDATE})


async def _file(request: Request) -> Response:
    """A file of the folder, by any version: an old page may still be open after an update."""
    path = find(request.path_params["rest"])
    if path is None:
        return problem_response(problem("not_found", "There is no such file."))
    headers = {"Cache-Control": IMMUTABLE}
    if path.relative_to(FOLDER.resolve()).as_posix().startswith(WORKERS):
        headers["Content-Security-Policy"] = WORKER_POLICY
    return FileResponse(path, media_type=TYPES[path.suffix], headers=headers)


def find(name: str) -> Path | None:
    """A file below the folder; None for anything else, such as a path with ``..``."""
    try:
        path = (FOLDER / name).resolve()
        is_ours = path.is_relative_to(FOLDER.resolve()) and path.suffix in TYPES
        return path if is_ours and path.is_file() else None
    except (OSError, ValueError):
        return None  # too long, or with a null byte


def version() -> str:
    """The version of the files: of the package, and of edits to them."""
    digest = blake2b(digest_size=4)
    for path in sorted(FOLDER.rglob("*")):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{riverrun.__version__}-{digest.hexdigest()}"
