"""The REST API as a table of endpoints: matching, validation, and errors.

A module of ``console/api`` declares ``ENDPOINTS``. A handler gets a ``ClusterRequest`` with values
that are already validated, and returns a Struct or a Starlette response. It raises ``ApiProblem``
(``problem`` makes one) or what ``as_problem`` explains. OpenAPI is derived from the same table.

    ENDPOINTS = (
        ApiEndpoint(
            "GET", "topics/{topic}", get_topic, "A topic", response=TopicDetails, tag="topics"
        ),
    )

    async def get_topic(request: ClusterRequest) -> TopicDetails:
        topic = request.params["topic"]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from riverrun.client.pool import ConnectionPool
from riverrun.console.clusters import ClusterEntry, ConnectedCluster, SharedResults
from riverrun.console.problems import HANDLED, ApiProblem, ErrorBody, as_problem, body_of, problem
from riverrun.console.sessions import ConsoleSessions, UserAccess
from riverrun.wire.messages.metadata_response import MetadataResponse

API_ROOT: Final = "/api/v1"
CLUSTER_ROOT: Final = f"{API_ROOT}/clusters/{{cluster}}"
OTHER_ROOTS: Final = ("/v3", "/kafka/v3")
"""Paths that begin with one of these are served as they are."""
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
"""Larger numbers do not fit into Kafka's requests."""
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
HANDLER_SECONDS_MAX: Final = 25.0
"""The page gives up after 30 seconds."""
READS: Final = ("GET", "HEAD")
OWN_SITES: Final = ("same-origin", "none")
OWN_HEADER: Final = "x-riverrun-console"
JSON: Final = "application/json"

Handler = Callable[["ClusterRequest"], Awaitable[Any]]
ProblemRender = Callable[[ApiProblem], Response]


class NoResult(Struct, frozen=True):
    """An empty response."""


class ChangeResult(Struct, kw_only=True):
    """The result of a write. Results with further fields extend it."""

    dry_run: bool
    """Whether nothing was changed."""
    command: str
    """The command that does the same."""


def problem_response(failure: ApiProblem) -> Response:
    """The usual JSON form of an error."""
    headers = {"WWW-Authenticate": 'Session realm="riverrun"'} if failure.status == 401 else None
    body = msgspec.json.encode(body_of(failure))
    return Response(body, failure.status, media_type=JSON, headers=headers)


@dataclass(frozen=True)
class ApiEndpoint:
    """One operation of the REST API.

    ``path`` is below ``/api/v1/clusters/{cluster}/``, or below ``/api/v1`` if it starts with a
    slash, or as it is if it starts with one of ``OTHER_ROOTS``.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    response: Any = NoResult
    """The type of the handler's result; None for one that returns a response of its own."""
    tag: str = "cluster"
    needs_cluster: bool = True
    needs_login: bool = True
    is_write: bool | None = None
    """Whether it changes something. By default all methods but GET do."""
    status: int = 200
    render_problem: ProblemRender = problem_response
    failure: type[Struct] = ErrorBody
    """The body of an error that ``render_problem`` makes, for OpenAPI."""
    seconds_max: float = HANDLER_SECONDS_MAX
    media_type: str = JSON
    """The content type of the response, for OpenAPI."""

    @property
    def full_path(self) -> str:
        if self.path.startswith(OTHER_ROOTS):
            return self.path
        if self.path.startswith("/"):
            return API_ROOT + self.path
        return f"{CLUSTER_ROOT}/{self.path}"

    @property
    def changes(self) -> bool:
        return self.method not in READS if self.is_write is None else self.is_write


class ClusterRequest:
    """What a handler gets."""

    def __init__(
        self,
        raw: Request,
        *,
        params: dict[str, str],
        query: Any,
        body: Any,
        access: UserAccess | None,
        connected: ConnectedCluster | None,
        sessions: ConsoleSessions,
    ) -> None:
        self.raw = raw
        self.params = params
        """The parameters of the path, decoded."""
        self.query = query
        """An instance of ``ApiEndpoint.query``."""
        self.body = body
        """An instance of ``ApiEndpoint.body``."""
        self.sessions = sessions
        self._access = access
        self._connected = connected

    @property
    def connected(self) -> ConnectedCluster:
        assert self._connected is not None, "the endpoint does not need a cluster"
        return self._connected

    @property
    def has_cluster(self) -> bool:
        return self._connected is not None

    @property
    def pool(self) -> ConnectionPool:
        """Connections to the cluster, logged in as the user of the session."""
        return self.connected.pool

    @property
    def cluster(self) -> ClusterEntry:
        return self.connected.entry

    @property
    def results(self) -> SharedResults:
        """Results that the requests of this user share for a short time."""
        return self.connected.results

    @property
    def access(self) -> UserAccess:
        """The user, with all clusters; for endpoints that do not need one cluster."""
        assert self._access is not None, "the endpoint does not need a login"
        return self._access

    @property
    def user(self) -> str | None:
        """The user of the cluster, if it has users."""
        return self.access.user_in(self.cluster.name)

    @property
    def access_if_any(self) -> UserAccess | None:
        return self._access

    async def metadata(self) -> MetadataResponse:
        """All topics and nodes, a few seconds old. Do not change it: requests share it."""
        return await self.connected.metadata()

    def at(self, cluster: str) -> ClusterRequest:
        """The same request for a cluster by name."""
        return ClusterRequest(
            self.raw,
            params=self.params,
            query=self.query,
            body=self.body,
            access=self._access,
            connected=self.access.connected(cluster),
            sessions=self.sessions,
        )


class _Branch:
    """A node of the tree of paths."""

    __slots__ = ("any_name", "endpoints", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Branch] = {}
        self.any_name: _Branch | None = None
        self.endpoints: dict[str, ApiEndpoint] = {}


class EndpointTable:
    """Finds the endpoint of a path. Names in a path may contain an escaped slash."""

    def __init__(self, endpoints: Iterable[ApiEndpoint]) -> None:
        self.endpoints: Sequence[ApiEndpoint] = tuple(endpoints)
        self._root = _Branch()
        self._renders: dict[str, ProblemRender] = {}
        """How errors look below the first name of a path."""
        for endpoint in self.endpoints:
            self._renders[endpoint.full_path.split("/")[1]] = endpoint.render_problem
            branch = self._root
            for part in endpoint.full_path.split("/")[1:]:
                if part.startswith("{") and part.endswith("}"):
                    branch.any_name = branch.any_name or _Branch()
                    branch = branch.any_name
                else:
                    branch = branch.names.setdefault(part, _Branch())
            name = f"{endpoint.method} {endpoint.full_path}"
            assert endpoint.method not in branch.endpoints, f"{name} is declared twice"
            branch.endpoints[endpoint.method] = endpoint

    def render_of(self, raw_path: str) -> ProblemRender:
        """The form of errors for a path, also for one that does not exist."""
        return self._renders.get(raw_path.split("/")[1], problem_response)

    def find(self, method: str, raw_path: str) -> tuple[ApiEndpoint, dict[str, str]]:
        """The endpoint and the decoded parameters of a path. Raises ``ApiProblem``."""
        branch = self._root
        values: list[str] = []
        for part in raw_path.split("/")[1:]:
            decoded = unquote(part)
            if decoded in branch.names:
                branch = branch.names[decoded]
            elif branch.any_name is not None and part:
                branch = branch.any_name
                values.append(decoded)
            else:
                raise problem(
                    "not_found", f"There is no {raw_path}.", f"See {API_ROOT}/openapi.json."
                )
        if not branch.endpoints:
            raise problem("not_found", f"There is no {raw_path}.", f"See {API_ROOT}/openapi.json.")
        endpoint = branch.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = ", ".join(branch.endpoints)
            raise ApiProblem(405, "invalid", f"{method} is not supported here.", f"Use {allowed}.")
        parts = endpoint.full_path.split("/")
        names = [part[1:-1] for part in parts if part.startswith("{")]
        return endpoint, dict(zip(names, values, strict=True))


class ApiServer:
    """Responds to the requests of the REST API."""

    def __init__(
        self, table: EndpointTable, sessions: ConsoleSessions, *, is_read_only: bool
    ) -> None:
        self._table = table
        self._sessions = sessions
        self._is_read_only = is_read_only

    async def respond(self, raw: Request) -> Response:
        raw_path = raw.scope.get("raw_path", b"").decode("latin-1") or raw.url.path
        render = self._table.render_of(raw_path)
        try:
            endpoint, params = self._table.find(raw.method, raw_path)
            render = endpoint.render_problem
            check_origin(raw)
            request = await self._request(raw, endpoint, params)
            if self._is_read_only and endpoint.changes and not _is_dry_run(request):
                raise problem("forbidden", "This console is read only.", "Use the command line.")
            async with asyncio.timeout(endpoint.seconds_max):
                result = await endpoint.handler(request)
        except HANDLED as failure:
            return render(as_problem(failure))
        if endpoint.changes and request.has_cluster:
            request.results.forget()
        if isinstance(result, Response):
            return result
        return Response(msgspec.json.encode(result), endpoint.status, media_type=JSON)

    async def _request(
        self, raw: Request, endpoint: ApiEndpoint, params: dict[str, str]
    ) -> ClusterRequest:
        access = await self._sessions.access_of(raw, _cluster_of(raw, endpoint, params))
        if access is None and endpoint.needs_login:
            raise problem("login_required", "Log in first.", "Send a user and a password.")
        connected = None
        if access is not None and endpoint.needs_cluster:
            connected = access.connected(params["cluster"])
        return ClusterRequest(
            raw,
            params=params,
            query=parse_query(raw, endpoint.query),
            body=await parse_body(raw, endpoint.body, endpoint.body_bytes_max),
            access=access,
            connected=connected,
            sessions=self._sessions,
        )


def _cluster_of(raw: Request, endpoint: ApiEndpoint, params: dict[str, str]) -> str | None:
    """The cluster that a request is for. The credentials of a script must be sent to no other."""
    if endpoint.query is not None and "cluster" in endpoint.query.__struct_fields__:
        return raw.query_params.get("cluster")
    return params.get("cluster")


def check_origin(raw: Request) -> None:
    """Refuse requests that a page of another site sent; it may only link to reads. Scripts send no
    such header."""
    if raw.headers.get(OWN_HEADER) == "1":
        return  # a foreign page cannot send it: the browser asks first, and is refused
    if raw.method in READS and raw.headers.get("sec-fetch-mode") == "navigate":
        return
    site = raw.headers.get("sec-fetch-site")
    origin = raw.headers.get("origin")
    is_own = site in OWN_SITES if site is not None else origin is None or _is_host(raw, origin)
    if not is_own:
        raise problem(
            "forbidden",
            "A page of another site sent this request.",
            "Use the console's own pages, or send the header X-Riverrun-Console: 1.",
        )


def _is_host(raw: Request, origin: str) -> bool:
    return origin.partition("://")[2] == raw.headers.get("host")


def _is_dry_run(request: ClusterRequest) -> bool:
    return bool(getattr(request.body, "dry_run", False) or getattr(request.query, "dry_run", False))


def parse_query(raw: Request, kind: type[Struct] | None) -> Any:
    if kind is None:
        return None
    try:
        return msgspec.convert(dict(raw.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise problem("invalid", _explained(error, "the query")) from None


async def parse_body(
    raw: Request, kind: type[Struct] | None, bytes_max: int = BODY_BYTES_MAX
) -> Any:
    if kind is None:
        return None
    received = bytearray()
    async for chunk in raw.stream():
        received += chunk
        if len(received) > bytes_max:
            raise ApiProblem(413, "invalid", f"The body is larger than {bytes_max // 1024:,} KiB.")
    try:
        return msgspec.json.decode(bytes(received) or b"{}", type=kind)
    except msgspec.DecodeError as error:  # includes ValidationError
        raise problem("invalid", _explained(error, "the body")) from None
    except RecursionError:
        raise problem("invalid", "The body is nested too deeply.") from None


def _explained(error: msgspec.DecodeError | msgspec.ValidationError, place: str) -> str:
    text = str(error).replace(" - at `$.", " in `").replace(" - at `$`", "")
    return f"{text[:1].upper()}{text[1:]} of {place}." if " in `" in text else f"{text} ({place})."
