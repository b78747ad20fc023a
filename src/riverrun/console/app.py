"""The console as one ASGI application: the REST API, the pages and their files."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Final

from msgspec import Struct, field
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from riverrun.console.clusters import ClusterEntry, ClusterSettings
from riverrun.console.host_names import AllowedHosts
from riverrun.console.open_streams import OpenStreams
from riverrun.console.problems import problem
from riverrun.console.routing import (
    OTHER_ROOTS,
    READS,
    ApiEndpoint,
    ApiServer,
    EndpointTable,
    problem_response,
)
from riverrun.console.sessions import ConsoleSessions
from riverrun.console.static_files import StaticFiles

API_MODULES: Final = (
    "session",
    "overview",
    "nodes",
    "topics",
    "groups",
    "messages",
    "history",
    "connections",
    "timeline",
    "pipelines",
    "reports",
    "quorum",
    "moves",
    "transactions",
    "users",
    "acls",
    "quotas",
    "v3",
)
"""The modules of ``console/api``. Each has ``ENDPOINTS``."""
METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
COMPRESSED_BYTES_MIN: Final = 2048
ETAG_BYTES: Final = 16
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ConsoleSettings(Struct, frozen=True, kw_only=True):
    """What a console serves."""

    clusters: tuple[ClusterSettings, ...]
    is_read_only: bool = False
    is_local: bool = False
    """Whether it listens on a loopback address, so that passwords do not cross a network."""
    hosts: tuple[str, ...] = ()
    """Its host names, beside addresses and localhost (``host_names``)."""
    tls: dict[str, str] = field(default_factory=dict)
    """The certificate for HTTPS, by the settings of a listener. With one, users who log in from
    other machines need HTTPS."""


def declared_endpoints() -> Iterator[ApiEndpoint]:
    """The endpoints of all modules."""
    for name in API_MODULES:
        yield from importlib.import_module(f"riverrun.console.api.{name}").ENDPOINTS


class Console:
    """The parts of a running console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.sessions = ConsoleSessions(
            [ClusterEntry(each) for each in settings.clusters],
            needs_https=bool(settings.tls) and not settings.is_local,
        )
        self.table = EndpointTable(declared_endpoints())
        self._api = ApiServer(self.table, self.sessions, is_read_only=settings.is_read_only)
        self.app = Starlette(
            routes=[
                *StaticFiles().routes(),
                *(Route(f"{root}/{{rest:path}}", self._respond, methods=METHODS) for root in ROOTS),
            ],
            middleware=[
                Middleware(HeaderMiddleware, hosts=AllowedHosts(settings.hosts)),
                Middleware(GZipMiddleware, minimum_size=COMPRESSED_BYTES_MIN, compresslevel=5),
            ],
            exception_handlers={404: _not_found, 405: _not_found, 500: _internal_error},
            lifespan=self._lifespan,
        )
        self.app.router.redirect_slashes = False
        self.app.state.is_read_only = settings.is_read_only
        self.app.state.table = self.table
        self.app.state.streams = OpenStreams()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.sessions.close()

    async def _respond(self, request: Request) -> Response:
        response = await self._api.respond(request)
        if request.method in READS and type(response) is Response and response.status_code == 200:
            return conditional(request, response)
        response.headers.setdefault("Cache-Control", "no-store")
        return response


ROOTS: Final = ("/api", *OTHER_ROOTS)


def conditional(request: Request, response: Response) -> Response:
    """Answer 304 if the client has the same content."""
    digest = blake2b(bytes(response.body), digest_size=ETAG_BYTES).hexdigest()
    tag = f'W/"{digest}"'
    response.headers["ETag"] = tag
    response.headers.setdefault("Cache-Control", "private, no-cache")
    known = request.headers.get("if-none-match", "")
    if tag in (each.strip() for each in known.split(",")):
        kept = {name: response.headers[name] for name in ("ETag", "Cache-Control")}
        return Response(status_code=304, headers=kept)
    return response


async def _not_found(request: Request, _: Exception) -> Response:
    text = f"There is no {request.url.path}."
    return problem_response(problem("not_found", text, "The pages are at /ui/."))


async def _internal_error(_: Request, __: Exception) -> Response:
    """A bug. The server logs it with its traceback."""
    return problem_response(
        problem("error", "The console failed.", "The log of the node has the reason.")
    )


class HeaderMiddleware:
    """Checks the Host header, and adds headers that protect the pages to all responses."""

    def __init__(self, app: ASGIApp, *, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, text in SECURITY_HEADERS.items():
                    headers.setdefault(name, text)
            await send(message)

        host = Headers(scope=scope).get("host")
        if host is not None and not self._hosts.allows(host):
            refusal = problem(
                "forbidden",
                "This console does not answer to the host name of this request.",
                "Use an IP address or localhost, or add the name to the setting "
                "console.allowed.hosts of the node, or to --allowed-host of `riverrun console`.",
            )
            await problem_response(refusal)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)
