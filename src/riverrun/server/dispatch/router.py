"""Routes a request frame to its handler, and frames the response.

Each API is served by the module ``server/requests/<name>.py``, imported on first use. Its
``handle(services, context, request)`` returns a response, its bytes, or an awaitable. Produce and
Fetch have ``handle_frame(services, context, buffer, at)`` instead, get the raw frame, and may
return None for "no response". Only the router turns a ``KafkaError`` into a response, by the
module's ``failed(request, code, message)`` or, if there is none, by the response's error code.

Invalid requests and bugs of handlers raise ``Refused``, which closes the connection. A handler may
raise it too, where Kafka closes the connection.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from types import UnionType
from typing import Any, Final, Protocol, get_origin

from msgspec import Struct
from msgspec.structs import fields

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Counter, Histogram, Metrics
from riverrun.server.dispatch.context import Peer, RequestContext
from riverrun.server.dispatch.timed_work import TimedWork
from riverrun.wire.apis import FORWARDED, ROUTES, Api, ApiKey
from riverrun.wire.codec import decode_request, encode_response, message_class
from riverrun.wire.headers import flexible_header_from, response_start
from riverrun.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from riverrun.wire.primitives import Buffer, MalformedRequest, skip_tagged_fields
from riverrun.wire.produce import ProduceResult, encode_produce_response, parse_produce

HOT: Final = (ApiKey.PRODUCE, ApiKey.FETCH)
OVERLAPPING: Final = (ApiKey.PRODUCE, ApiKey.ENVELOPE, ApiKey.VERIFY_REPLICA)
BULKY: Final = (*HOT, ApiKey.ENVELOPE, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
"""APIs whose requests are mostly opaque bytes. All others are decoded item by item in one iteration
of the event loop, and an item takes few bytes: a large request would block the node for seconds."""
ITEMS_BYTES_MAX: Final = 16 * 1024 * 1024
ADMIN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Requests for the controller: it decides them item by item, with at most 10,000 items."""
JOINED_BYTES_MAX: Final = 16 * 1024
_HEADER: Final = struct.Struct(">hhih")

Frame = bytes | list[Buffer]
"""A framed response, as one or several buffers."""


Failed = Callable[[Any, ErrorCode, str | None], Any]
Forward = Callable[[Api, RequestContext, Any], Any]
AccessCheck = Callable[[ApiKey, RequestContext, Any], None]


class ChangeAudit(Protocol):
    """Records administrative requests; see ``server/security/audit``."""

    @property
    def audited(self) -> frozenset[ApiKey]: ...

    def changed(
        self, key: ApiKey, context: RequestContext, request: Any, response: Any
    ) -> None: ...


class Throttling(Protocol):
    """Slows down clients above their quotas; see ``server/security/request_throttle.py``."""

    @property
    def quotas(self) -> QuotaState: ...

    def unanswered(self, context: RequestContext, size: int) -> None: ...

    def answered(
        self, key: ApiKey, context: RequestContext, body: Any, *, size: int, seconds: float
    ) -> Any: ...


class RequestTracing(Protocol):
    """Records slow requests; see ``server/tracing.py``."""

    @property
    def slow_seconds(self) -> float: ...

    def ended(
        self,
        key: ApiKey,
        context: RequestContext,
        request: Any,
        result: Any,
        seconds: float,
        wait: Awaitable[Any] | None = None,
    ) -> None: ...


class QuotaState(Protocol):
    """Whether any client has a quota."""

    @property
    def is_active(self) -> bool: ...


class Refused(Exception):
    """The connection must be closed. ``kind`` is counted, the text is logged."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Route(Struct):
    """One API with its handler."""

    api: Api
    handle: Callable[..., Any]
    failed: Failed | None
    is_hot: bool
    is_audited: bool
    flexible_header_from: int
    requests: Counter
    seconds: Histogram


class Call(Struct):
    """A request that is being handled; ``wait`` is set if its response is pending."""

    route: Route
    context: RequestContext
    request: Any
    started: float
    wait: Awaitable[Any] | None = None
    size: int = 0
    busy_seconds: float = 0.0
    """How long its handler used the event loop. Measured only while there are quotas."""

    @property
    def is_cancellable(self) -> bool:
        """Whether to cancel it when its client is gone. Only fetches change no state."""
        return self.route.api.key is ApiKey.FETCH


class Router:
    """The APIs of one node, on one kind of listener."""

    def __init__(
        self,
        services: object,
        *,
        metrics: Metrics,
        clock: Clock,
        apis: Mapping[int, Api] = ROUTES,
        modules: Mapping[ApiKey, Any] | None = None,
        forward: Forward | None = None,
        on_bug: Callable[[BaseException], None] | None = None,
        access: AccessCheck | None = None,
        throttle: Throttling | None = None,
        audit: ChangeAudit | None = None,
        tracer: RequestTracing | None = None,
    ) -> None:
        """``modules`` replaces the request modules of some APIs. ``access`` raises ``KafkaError``
        if the principal of a request lacks the right that it needs as a whole.
        ``forward`` gets the requests for the active controller. ``on_bug`` gets every unexpected
        exception of a handler, before the connection is closed; the node may stop. ``throttle``
        gets every response while there are quotas, ``audit`` those to administrative requests,
        ``tracer`` those of slow requests.
        """
        self._services = services
        self._metrics = metrics
        self._clock = clock
        self._apis = apis
        self._modules = modules or {}
        self._forward = forward
        self._on_bug = on_bug
        self._access = access
        self._throttle = throttle
        self._audit = audit
        self._tracer = tracer
        self._routes: dict[int, Route] = {}

    def overlaps(self, api_key: int) -> bool:
        """Whether a request of this API may begin while an earlier one of it is pending.

        Produce may: batches are appended in order, and only their acknowledgements wait. Envelopes
        may: they contain requests of different clients. VerifyReplica may: each is about another
        partition, and takes as long as reading it. All others are handled one by one, as in
        Kafka: a client that commits offsets and then fetches them on the same connection expects
        to see the commit.
        """
        return api_key in OVERLAPPING

    def handle(self, frame: memoryview, peer: Peer) -> Frame | Call | None:
        """The framed response, None for no response, or the call whose response is pending.

        The frame is not used after this returns. Raises ``Refused``.
        """
        try:
            key, version, correlation_id, size = _HEADER.unpack_from(frame, 0)
            at = 10 if size < 0 else 10 + size
            if at > len(frame):
                raise MalformedRequest(f"client id of {size} bytes in {len(frame)}")
            client_id = None if size < 0 else str(frame[10:at], "utf-8")
            api = self._apis.get(key)
            if api is None:
                raise Refused("unknown_api", f"API {key} is unknown")
            if len(frame) > ADMIN_BYTES_MAX and key not in BULKY:
                self._check_size(api, len(frame))
            if not api.min_version <= version <= api.max_version:
                return self._respond_to_other_version(api, version, correlation_id, frame, at)
            if version >= api.flexible_from:
                at = skip_tagged_fields(frame, at, len(frame)) if frame[at] else at + 1
        except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
            raise Refused("malformed", f"request header: {error}") from error
        route = self._routes.get(key) or self._route(key)
        route.requests.value += 1
        context = RequestContext(version, correlation_id, client_id, *peer, key)
        return self._begin(route, context, frame, at)

    def _check_size(self, api: Api, size: int) -> None:
        limit = ADMIN_BYTES_MAX if api.key in FORWARDED else ITEMS_BYTES_MAX
        if size > limit:
            raise Refused("oversized", f"{api.name} of {size} bytes: {limit} are allowed")

    def _begin(
        self, route: Route, context: RequestContext, frame: memoryview, at: int
    ) -> Frame | Call | None:
        started = self._clock.monotonic()
        request = None
        try:
            if route.is_hot:
                result = route.handle(self._services, context, frame, at)
            else:
                request = decode_request(route.api.key, context.api_version, frame, at)
                if self._access is not None:
                    self._access(route.api.key, context, request)
                if self._forward is not None and route.api.key in FORWARDED:
                    result = self._forward(route.api, context, request)
                else:
                    result = route.handle(self._services, context, request)
        except KafkaError as error:
            call = Call(route, context, request, started)
            return self._end(call, self._failure(call, error))
        except MalformedRequest as error:
            raise Refused("malformed", str(error)) from error
        except Refused:
            raise
        except Exception as error:
            raise self._bug(Call(route, context, request, started), error) from error
        if self._throttle is not None and self._throttle.quotas.is_active:
            return self._begin_counted(Call(route, context, request, started), result, len(frame))
        kind = type(result)
        if kind is bytes or kind is list or (result is None and route.is_hot):
            seconds = self._clock.monotonic() - started
            route.seconds.observe(seconds)
            if self._tracer is not None and seconds >= self._tracer.slow_seconds:
                self._tracer.ended(route.api.key, context, request, result, seconds)
            return None if result is None else self._framed(route, context, result)
        call = Call(route, context, request, started)
        if inspect.isawaitable(result):
            call.wait = result
            return call
        return self._end(call, result)

    def _begin_counted(self, call: Call, result: Any, size: int) -> Frame | Call | None:
        """The same as the end of ``_begin``, for a request that counts for quotas."""
        call.size = size
        call.busy_seconds = self._clock.monotonic() - call.started
        if inspect.iscoroutine(result):
            call.wait = TimedWork(result, self._clock)
            return call
        if inspect.isawaitable(result):
            call.wait = result
            return call
        return self._end(call, result)

    async def respond(self, key: ApiKey, context: RequestContext, request: Any) -> Any:
        """The response to a decoded request, without framing. Raises ``KafkaError``.

        Used for requests of this node to itself, and for forwarded requests that it can serve.
        """
        route = self._routes.get(key) or self._route(key)
        result = route.handle(self._services, context, request)
        return await result if inspect.isawaitable(result) else result

    def error_response(self, key: ApiKey, request: Any, error: KafkaError) -> Any:
        """The response to a request that failed as a whole; None if the API cannot express it."""
        route = self._routes.get(key) or self._route(key)
        return failure_of(key, route.failed, request, error)

    def finish(self, call: Call, done: asyncio.Future[Any]) -> Frame | None:
        """The framed response of a call that was pending. Raises ``Refused``."""
        if done.cancelled():
            raise Refused("cancelled", f"{call.route.api.name} was cancelled")
        error = done.exception()
        if error is None:
            return self._end(call, done.result())
        if isinstance(error, KafkaError):
            return self._end(call, self._failure(call, error))
        if isinstance(error, MalformedRequest):
            raise Refused("malformed", str(error)) from error
        if isinstance(error, Refused):
            raise error
        raise self._bug(call, error) from error

    def _end(self, call: Call, result: Any) -> Frame | None:
        """Frame a body: bytes, buffers, or a message to encode."""
        route, context = call.route, call.context
        elapsed = self._clock.monotonic() - call.started
        route.seconds.observe(elapsed)
        if self._tracer is not None and elapsed >= self._tracer.slow_seconds:
            key, wait = route.api.key, call.wait
            self._tracer.ended(key, context, call.request, result, elapsed, wait)
        throttle = self._throttle
        if route.is_audited and self._audit is not None:
            self._audit.changed(route.api.key, context, call.request, result)
        if result is None and route.is_hot:
            if throttle is not None and call.size:
                throttle.unanswered(context, call.size)
            return None
        if throttle is not None and call.size:
            seconds = call.busy_seconds
            if isinstance(call.wait, TimedWork):
                seconds += call.wait.seconds
            result = throttle.answered(
                route.api.key, context, result, size=call.size, seconds=seconds
            )
        if type(result) is not bytes and type(result) is not list:
            try:
                result = encode_response(route.api.key, context.api_version, result)
            except AssertionError as error:
                raise self._bug(call, error) from error
        return self._framed(route, context, result)

    def _framed(self, route: Route, context: RequestContext, body: bytes | list[Buffer]) -> Frame:
        is_flexible = context.api_version >= route.flexible_header_from
        if type(body) is list:
            size = sum(map(len, body))
            start = response_start(context.correlation_id, size, is_flexible=is_flexible)
            return [start, *body]
        assert type(body) is bytes, f"a body is bytes or a list of buffers, not {type(body)}"
        start = response_start(context.correlation_id, len(body), is_flexible=is_flexible)
        return start + body if len(body) <= JOINED_BYTES_MAX else [start, body]

    def _failure(self, call: Call, error: KafkaError) -> Any:
        """The response to a request that failed as a whole."""
        response = failure_of(call.route.api.key, call.route.failed, call.request, error)
        if response is None:
            raise self._bug(call, error) from error
        return response

    def _bug(self, call: Call, error: BaseException) -> Refused:
        if self._on_bug is not None:
            self._on_bug(error)
        name = call.route.api.name
        return Refused("bug", f"{name} v{call.context.api_version}: {error!r}")

    def _respond_to_other_version(
        self, api: Api, version: int, correlation_id: int, frame: memoryview, at: int
    ) -> Frame:
        """Two APIs respond to versions that they do not serve; all others are refused."""
        code = ErrorCode.UNSUPPORTED_VERSION
        if api.key is ApiKey.API_VERSIONS:  # KIP-511: the oldest form, with our versions
            known = ApiVersion(
                api_key=api.key, min_version=api.min_version, max_version=api.max_version
            )
            message = ApiVersionsResponse(error_code=code, api_keys=(known,))
            body = encode_response(api.key, 0, message)
            return response_start(correlation_id, len(body), is_flexible=False) + body
        if api.key is ApiKey.PRODUCE and 0 <= version < api.min_version:
            produce = parse_produce(frame, at, version)
            if produce.acks != 0:
                results = [ProduceResult(p.topic, p.partition, code) for p in produce.partitions]
                body = encode_produce_response(version, results)
                return response_start(correlation_id, len(body), is_flexible=False) + body
        raise Refused("unsupported_version", f"version {version} of {api.name} is not supported")

    def _route(self, key: int) -> Route:
        api = self._apis[key]
        module: Any = self._modules.get(api.key)
        if module is None:
            module = import_module(f"riverrun.server.requests.{api.name}")
        is_hot = key in HOT
        route = Route(
            api=api,
            handle=module.handle_frame if is_hot else module.handle,
            failed=getattr(module, "failed", None),
            is_hot=is_hot,
            is_audited=self._audit is not None and api.key in self._audit.audited,
            flexible_header_from=flexible_header_from(api),
            requests=self._metrics.counter(
                "riverrun_requests_total", "Requests received.", api=api.title
            ),
            seconds=self._metrics.histogram(
                "riverrun_request_seconds", "Time from a request to its response.", api=api.title
            ),
        )
        self._routes[key] = route
        return route


def failure_of(key: ApiKey, failed: Failed | None, request: Any, error: KafkaError) -> Any:
    """The response to a request that failed as a whole; None if the API cannot express it."""
    if failed is not None:
        return failed(request, error.code, error.message)
    response = message_class(key, "response")
    known = {field.name: field for field in fields(response)}
    if "error_code" not in known:
        return None
    values: dict[str, Any] = {
        name: _empty(field.type)
        for name, field in known.items()
        if field.required and name != "error_code"
    }
    if "error_message" in known:
        values["error_message"] = error.message
    return response(error_code=error.code, **values)


def _empty(kind: Any) -> Any:
    """The empty value of a field without a default."""
    if get_origin(kind) is tuple:
        return ()
    if isinstance(kind, UnionType):
        return None
    assert kind in (int, str, bool, bytes), f"{kind} has no empty value"
    return kind()
