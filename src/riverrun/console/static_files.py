"""The pages and their files. File addresses contain the version, so browsers keep them.

Files are read and compressed once, and again after an edit.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import riverrun
from riverrun.console.problems import problem
from riverrun.console.routing import API_ROOT, problem_response

FOLDER: Final = (Path(__file__).parent / "static").resolve()
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
TAG_BYTES: Final = 16
VERSION_BYTES: Final = 4


class StaticFile(Struct):
    """A file as it is sent."""

    plain: bytes
    digest: str
    changed: tuple[int, int]
    """Size and time. When they change, it is read again."""
    packed: bytes = b""
    """Compressed; empty before its first use."""

    def compressed(self) -> bytes:
        self.packed = self.packed or gzip.compress(self.plain, mtime=0)
        return self.packed


class StaticFiles:
    def __init__(self) -> None:
        self._files: dict[Path, StaticFile] = {}
        self._version = self._current_version()

    def _current_version(self) -> str:
        """The version of the package, and of edits to its files. It is the same on all nodes."""
        digest = blake2b(digest_size=VERSION_BYTES)
        for path in sorted(FOLDER.rglob("*")):
            if path.suffix in TYPES:
                name = path.relative_to(FOLDER).as_posix()
                digest.update(f"{name} {self._read(path).digest}\n".encode())
        return f"{riverrun.__version__}-{digest.hexdigest()}"

    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/", _root),
            Route("/ui", _root),
            Route("/ui/{rest:path}", self._page),
            Route(f"{API_ROOT}/docs", self._docs),
            Route("/static/{version}/{rest:path}", self._respond),
        )

    async def _respond(self, request: Request) -> Response:
        """A file of the folder, by any version: an old page may still be open after an update.
        Browsers keep it only under its own version. Behind a proxy, a page of another node may ask
        for a version that this node does not have."""
        path = find(request.path_params["rest"])
        if path is None:
            return problem_response(problem("not_found", "There is no such file."))
        is_own = request.path_params["version"] == self._version
        headers = {
            "Cache-Control": IMMUTABLE if is_own else REVALIDATE,
            "Vary": "Accept-Encoding",
        }
        if path.relative_to(FOLDER).as_posix().startswith(WORKERS):
            headers["Content-Security-Policy"] = WORKER_POLICY
        file = self._read(path)
        tag = headers["ETag"] = f'W/"{file.digest}"'
        known = request.headers.get("if-none-match", "")
        if tag in (each.strip() for each in known.split(",")):
            return Response(status_code=304, headers=headers)
        content = file.plain
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = file.compressed()
            headers["Content-Encoding"] = "gzip"
        return Response(content, media_type=TYPES[path.suffix], headers=headers)

    def _read(self, path: Path) -> StaticFile:
        status = path.stat()
        changed = status.st_size, status.st_mtime_ns
        known = self._files.get(path)
        if known is None or known.changed != changed:
            plain = path.read_bytes()
            digest = blake2b(plain, digest_size=TAG_BYTES).hexdigest()
            known = self._files[path] = StaticFile(plain, digest, changed)
        return known

    async def _page(self, _: Request) -> Response:
        return self._html("index.html")

    async def _docs(self, _: Request) -> Response:
        return self._html("docs.html")

    def _html(self, name: str) -> Response:
        self._version = self._current_version()
        text = self._read(FOLDER / name).plain.decode().replace(VERSION_MARK, f"/{self._version}/")
        return Response(text, media_type="text/html", headers={"Cache-Control": REVALIDATE})


async def _root(_: Request) -> Response:
    return RedirectResponse(PAGES)


def find(name: str) -> Path | None:
    """A file below the folder; None for anything else, such as a path with ``..``."""
    try:
        path = (FOLDER / name).resolve()
        is_ours = path.is_relative_to(FOLDER) and path.suffix in TYPES
        return path if is_ours and path.is_file() else None
    except (OSError, ValueError):
        return None  # too long, or with a null byte
