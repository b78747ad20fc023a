"""The common form of REST v3: links, lists, errors, and the table of operations.

The form is that of Confluent's REST API v3, from its public description. Each resource has a
``kind`` and ``metadata.self``; related resources are links. An error has an ``error_code``: the
HTTP status, or the status with two more digits that name a Kafka error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.responses import Response

from riverrun.admin.requests import LOOK_EVERY_SECONDS, LOOKS_MAX, REMEDIES, NotFound
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.client.security import AuthenticationFailed
from riverrun.console.problems import FORBIDDEN_CODES, ApiProblem
from riverrun.console.routing import JSON, READS, ApiEndpoint, ClusterRequest
from riverrun.console.sessions import is_https
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

ROOTS: Final = ("/v3", "/kafka/v3")
"""Confluent's own brokers serve the API below /kafka, and some tools use that path."""
ALL: Final = "-"
"""Stands for all topics, partitions or brokers in a path."""
DIGITS_MAX: Final = 18

BAD_REQUEST: Final = 40002
UNAUTHENTICATED: Final = 40101
UNAUTHORIZED: Final = 40301
UNKNOWN_TOPIC: Final = 40403
KAFKA_FAILED: Final = 50002
KAFKA_RETRIABLE: Final = 50003
CODE_OF_STATUS: Final = {401: UNAUTHENTICATED, 403: UNAUTHORIZED}
UNKNOWN_TOPIC_TEXT: Final = "This server does not host this topic-partition."
"""The message of Kafka's error code."""
UNKNOWN_TOPIC_CODES: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
NOT_FOUND_CODES: Final = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
)

Item = TypeVar("Item")


class V3Error(Struct, frozen=True, kw_only=True):
    """The body of a response with an error."""

    error_code: int
    message: str


class V3Link(Struct, frozen=True, kw_only=True):
    """The address of a related resource."""

    related: str


class V3Metadata(Struct, frozen=True, kw_only=True, rename={"self_": "self"}):
    """The address of a resource, and its name in Confluent's form."""

    self_: str
    resource_name: str | None


class V3ListMetadata(Struct, frozen=True, kw_only=True, rename={"self_": "self"}):
    """The address of a list. Lists are not paged, so ``next`` is null."""

    self_: str
    next: str | None = None


class V3List(Struct, Generic[Item], frozen=True, kw_only=True):
    """A list of resources."""

    kind: str
    metadata: V3ListMetadata
    data: Sequence[Item]


class V3Problem(ApiProblem):
    """A problem with the number of v3."""

    def __init__(
        self, status: int, error_code: int, message: str, remedy: str | None = None
    ) -> None:
        super().__init__(status, "error", message, remedy)
        self.error_code = error_code


def not_found(message: str) -> V3Problem:
    return V3Problem(404, 404, message)


def invalid(message: str, status: int = 400) -> V3Problem:
    return V3Problem(status, status, message)


def unknown_topic() -> V3Problem:
    return V3Problem(404, UNKNOWN_TOPIC, UNKNOWN_TOPIC_TEXT)


def render(failure: ApiProblem) -> Response:
    """The form of v3 for any problem."""
    code = CODE_OF_STATUS.get(failure.status, failure.status)
    if isinstance(failure, V3Problem):
        code = failure.error_code
    remedy = f" {failure.remedy}" if failure.remedy else ""
    body = V3Error(error_code=code, message=failure.message + remedy)
    headers = {"WWW-Authenticate": 'Basic realm="riverrun"'} if failure.status == 401 else None
    return Response(msgspec.json.encode(body), failure.status, media_type=JSON, headers=headers)


def as_v3(failure: KafkaError | NotFound | OSError) -> V3Problem:
    """Explain a failure of a handler."""
    match failure:
        case KafkaError():
            return of_code(failure.code, failure.message or failure.code.name)
        case NotFound():
            return not_found(str(failure).partition("\n")[0])
        case AuthenticationFailed():
            return V3Problem(401, UNAUTHENTICATED, str(failure))
        case _:
            return V3Problem(503, KAFKA_RETRIABLE, str(failure) or type(failure).__name__)


def of_code(code: ErrorCode, message: str) -> V3Problem:
    """The problem of a Kafka error."""
    if code in UNKNOWN_TOPIC_CODES:
        return unknown_topic()
    if code in NOT_FOUND_CODES:
        return not_found(message)
    if code is ErrorCode.SECURITY_DISABLED:
        return V3Problem(400, BAD_REQUEST, message)
    if code in FORBIDDEN_CODES:
        return V3Problem(403, UNAUTHORIZED, f"{message}:", REMEDIES[code])
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return V3Problem(413, 413, message)
    if code in RETRIABLE:
        return V3Problem(500, KAFKA_RETRIABLE, message)
    if code is ErrorCode.UNKNOWN_SERVER_ERROR:
        return V3Problem(500, KAFKA_FAILED, message)
    return V3Problem(400, BAD_REQUEST, message)


class V3Request:
    """A request for one cluster, and the links of its response."""

    def __init__(self, inner: ClusterRequest, cluster_id: str) -> None:
        self.inner = inner
        self.cluster_id = cluster_id
        self.query = inner.query
        self.body = inner.body
        self.params = inner.params
        self._base = base_of(inner)

    @property
    def pool(self) -> ConnectionPool:
        return self.inner.pool

    def url(self, *parts: str | int) -> str:
        """The address of a resource of the cluster."""
        names = "".join(f"/{quote(str(part), safe='-:')}" for part in parts)
        return f"{self._base}/clusters/{quote(self.cluster_id, safe='')}{names}"

    def link(self, *parts: str | int) -> V3Link:
        return V3Link(related=self.url(*parts))

    def metadata(self, *parts: str | int, name: str = "") -> V3Metadata:
        """``name`` is the end of the resource's name: ``/topic=orders``."""
        return V3Metadata(
            self_=self.url(*parts), resource_name=f"crn:///kafka={self.cluster_id}{name}"
        )

    def listed(self, kind: str, parts: Sequence[str | int], data: Sequence[Item]) -> V3List[Item]:
        return V3List(kind=kind, metadata=V3ListMetadata(self_=self.url(*parts)), data=data)

    def number(self, name: str) -> int:
        """A number in the path."""
        text = self.params[name]
        if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
            raise not_found(f"{text} is not a number.")
        return int(text)

    async def topic(self, name: str) -> MetadataResponseTopic:
        """The metadata of a topic; raises ``V3Problem``."""
        for _ in range(LOOKS_MAX):
            found = (await self.pool.metadata([name])).topics[0]
            if found.error_code not in UNKNOWN_TOPIC_CODES:
                break
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        if found.error_code is not ErrorCode.NONE:
            raise of_code(found.error_code, f"topic {name}: {found.error_code.name}")
        return found


NO_CONTENT: Final = {"response": None, "media_type": ""}
"""The fields of an operation whose response has no body."""

V3Handler = Callable[[V3Request], Awaitable[Any]]
ConsoleHandler = Callable[[ClusterRequest], Awaitable[Any]]


def base_of(request: ClusterRequest) -> str:
    """The address of the API, as the client knows it."""
    raw = request.raw
    scheme = "https" if is_https(raw) else "http"
    host = raw.headers.get("host") or raw.url.netloc
    root = ROOTS[1] if raw.url.path.startswith(ROOTS[1]) else ROOTS[0]
    return f"{scheme}://{host}{root}"


async def cluster_ids(request: ClusterRequest) -> dict[str, str]:
    """The names of the console's clusters by their Kafka cluster ids. Clusters that cannot be
    reached are left out, unless there is no other."""
    found: dict[str, str] = {}
    failure: OSError | None = None
    for name in request.access.clusters:
        pool = request.access.connected(name).pool
        try:
            if pool.cluster.cluster_id is None:
                await pool.metadata(())
        except OSError as error:
            failure = error
            continue
        if pool.cluster.cluster_id is not None:
            found[pool.cluster.cluster_id] = name
    if not found and failure is not None:
        raise failure
    return found


def in_cluster(handler: V3Handler) -> ConsoleHandler:
    """A handler of the frame, for the cluster in the path."""

    async def handle(request: ClusterRequest) -> Any:
        wanted = request.params["cluster_id"]
        name = (await cluster_ids(request)).get(wanted)
        if name is None:
            raise not_found(f"Cluster {wanted} cannot be found.")
        inner = request.at(name)
        result = await handler(V3Request(inner, wanted))
        if inner.raw.method not in READS:
            inner.results.forget()
        return result

    return _named(handle, handler)


def nothing() -> Response:
    """The response of a change without a result."""
    return Response(status_code=204)


def operation(
    method: str, path: str, handler: V3Handler, summary: str, **more: Any
) -> tuple[ApiEndpoint, ...]:
    """One operation of a cluster, at both roots. ``more`` are fields of the endpoint."""
    rest = f"/clusters/{{cluster_id}}/{path}" if path else "/clusters/{cluster_id}"
    return declared(method, rest, in_cluster(handler), summary, **more)


def declared(
    method: str, rest: str, handler: ConsoleHandler, summary: str, **more: Any
) -> tuple[ApiEndpoint, ...]:
    """One operation at both roots."""
    return tuple(
        ApiEndpoint(
            method,
            root + rest,
            _explained(handler, suffix),
            summary,
            tag="v3",
            needs_cluster=False,
            render_problem=render,
            failure=V3Error,
            **more,
        )
        for root, suffix in zip(ROOTS, ("", "_below_kafka"), strict=True)
    )


def _explained(handler: ConsoleHandler, suffix: str) -> ConsoleHandler:
    """Turn failures into problems of v3. OpenAPI needs a name of its own for each path."""

    async def handle(request: ClusterRequest) -> Any:
        try:
            return await handler(request)
        except (KafkaError, NotFound, OSError) as failure:
            raise as_v3(failure) from failure

    return _named(handle, handler, suffix)


def _named(handle: ConsoleHandler, handler: Any, suffix: str = "") -> ConsoleHandler:
    made: Any = handle
    made.__name__ = f"{handler.__name__}{suffix}"
    made.__module__ = f"{handler.__module__.rpartition('.')[0]}.v3_{_last(handler.__module__)}"
    made.__doc__ = handler.__doc__
    return handle


def _last(module: str) -> str:
    return module.rpartition(".")[2].removeprefix("v3_")
