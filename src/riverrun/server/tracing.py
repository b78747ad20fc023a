"""Traces: a span for each slow request, sent by OpenTelemetry's protocol (OTLP over HTTP).

Off unless ``tracing.endpoint`` or OpenTelemetry's own variable is set. Only then the libraries of
the extra ``otel`` are imported. The router then compares the duration of each request with a limit;
without an endpoint it checks one attribute and nothing else.

Spans are made after the request has ended, because most requests are fast and need none. They are
roots: Kafka's requests carry no trace context, and that of records is in their headers, which a
broker does not read. A thread sends them in batches. Its queue is bounded and drops the oldest, and
the number of spans for each second is limited, because an overloaded node has only slow requests.

A request that waits because its client asked for that is not slow: a Fetch without new records,
JoinGroup and SyncGroup.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import structlog

from riverrun import __version__
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import TopicId
from riverrun.model.settings import SettingError, Settings, setting
from riverrun.ports.aio import LogLimiter
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_response
from riverrun.wire.primitives import MalformedRequest

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from riverrun.ports.clock import Clock
    from riverrun.ports.metrics import Metrics
    from riverrun.server.dispatch.context import RequestContext
    from riverrun.server.services import NodeServices
    from riverrun.server.settings import NodeSettings

log = structlog.get_logger("riverrun.tracing")

ENDPOINT: Final = "tracing.endpoint"
TRACES_VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENDPOINT_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVICE_VARIABLE: Final = "OTEL_SERVICE_NAME"
TRACES_PATH: Final = "/v1/traces"
INSTALL: Final = "pip install 'riverrun[otel]'"
QUEUE_SPANS_MAX: Final = 2048
BATCH_SPANS_MAX: Final = 256
SEND_EVERY_MS: Final = 1000
SEND_SECONDS_MAX: Final = 2
"""For one batch, with all attempts. The exit of the process may wait this long for the last one."""
LOG_SECONDS: Final = 60.0
DECODED_BYTES_MAX: Final = 64 * 1024
"""Larger responses are not read for the names of topics."""
TOPICS_MAX: Final = 10
"""Names of topics in one span."""
WAITING: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
OPERATIONS: Final[Mapping[ApiKey, tuple[str, str]]] = {
    ApiKey.PRODUCE: ("produce", "send"),
    ApiKey.FETCH: ("fetch", "receive"),
    ApiKey.OFFSET_COMMIT: ("commit", "settle"),
    ApiKey.TXN_OFFSET_COMMIT: ("commit", "settle"),
}
"""``messaging.operation.name`` and ``.type`` of the APIs that the conventions know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(Settings):
    """Traces of slow requests, for OpenTelemetry."""

    endpoint: str = setting(
        "",
        name=ENDPOINT,
        doc="Where traces are sent, by OTLP over HTTP: http://collector:4318. Empty: the variable"
        " OTEL_EXPORTER_OTLP_ENDPOINT, or else none. Needs the extra otel. Kafka has no such"
        " setting.",
    )
    slow_request_ms: int = setting(
        100,
        name="tracing.slow.request.ms",
        at_least=0,
        doc="Requests that take at least this long have a span. 0: all. Kafka has no such setting.",
    )
    spans_max: int = setting(
        100,
        name="tracing.spans.per.second.max",
        at_least=1,
        doc="Spans for each second; further slow requests are only counted. Kafka has no such"
        " setting.",
    )

    @property
    def url(self) -> str:
        base = self.endpoint.rstrip("/")
        return base if base.endswith(TRACES_PATH) else base + TRACES_PATH


def with_environment(settings: NodeSettings, environment: Mapping[str, str]) -> NodeSettings:
    """Settings with the endpoint of OpenTelemetry's variables, unless they name one.

    The variables may be meant for other programs of the machine. If the libraries are missing, they
    are ignored with a warning, unlike the setting.
    """
    found = environment.get(TRACES_VARIABLE) or environment.get(ENDPOINT_VARIABLE)
    if not found or settings.tracing.endpoint:
        return settings
    if not _is_installed():
        log.warning("no traces are sent", variable=ENDPOINT_VARIABLE, remedy=INSTALL)
        return settings
    return replace(settings, tracing=replace(settings.tracing, endpoint=found))


def build_tracer(services: NodeServices) -> SlowRequests | None:
    """None if there is no endpoint. Raises ``SettingError``."""
    settings = services.settings.tracing
    if not settings.endpoint:
        return None
    if not settings.endpoint.startswith(("http://", "https://")):
        raise SettingError(ENDPOINT, settings.endpoint, "it is a URL such as http://collector:4318")
    if not _is_installed():
        raise SettingError(ENDPOINT, settings.endpoint, f"it needs {INSTALL}")

    def topic_name(topic: UUID) -> str | None:
        known = services.metadata.current.topics_by_id.get(TopicId(topic))
        return None if known is None else str(known.name)

    log.info("slow requests are traced", endpoint=settings.url, ms=settings.slow_request_ms)
    return SlowRequests(
        _tracer(settings.url, int(services.settings.node_id), services.clock),
        settings,
        topic_name=topic_name,
        clock=services.clock,
        metrics=services.metrics,
    )


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _tracer(url: str, node_id: int, clock: Clock) -> Tracer:
    """Spans that still wait are sent when the process exits."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _forward_logs(clock)
    own = {
        "service.name": "riverrun",
        "service.version": __version__,
        "service.instance.id": str(node_id),
    }
    # The variables of OpenTelemetry win over our names.
    resource = Resource.create(own).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(
        BatchSpanProcessor(
            OTLPSpanExporter(endpoint=url, timeout=SEND_SECONDS_MAX),
            max_queue_size=QUEUE_SPANS_MAX,
            max_export_batch_size=BATCH_SPANS_MAX,
            schedule_delay_millis=SEND_EVERY_MS,
        )
    )
    return provider.get_tracer("riverrun", __version__)


def _forward_logs(clock: Clock) -> None:
    """Warnings of the libraries, such as a collector that does not respond, go to our log."""
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.addHandler(_LogForwarder(clock))


class _LogForwarder(logging.Handler):
    """At most one message a minute: without a collector, every batch has several."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(level=logging.WARNING)
        self._limiter = LogLimiter(clock, interval_seconds=LOG_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        if self._limiter.admit(record.name) is not None:
            log.warning("traces are not sent", reason=record.getMessage())


class SlowRequests:
    """Makes spans of requests that took at least ``slow_seconds``."""

    def __init__(
        self,
        tracer: Tracer,
        settings: TracingSettings,
        *,
        topic_name: Callable[[UUID], str | None],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self.slow_seconds = settings.slow_request_ms / 1000
        self._tracer = tracer
        self._spans_max = settings.spans_max
        self._topic_name = topic_name
        self._clock = clock
        self._root = Context()
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)
        self._second = -1
        self._in_second = 0
        self._spans = metrics.counter(
            "riverrun_trace_spans_total", "Spans of slow requests that were queued."
        )
        self._dropped = metrics.counter(
            "riverrun_trace_spans_dropped_total",
            "Slow requests without a span, because there were too many of them.",
        )

    def ended(
        self,
        key: ApiKey,
        context: RequestContext,
        request: Any,
        result: Any,
        seconds: float,
        wait: Awaitable[Any] | None = None,
    ) -> None:
        """A slow request. ``result`` is its response or the bytes of it; ``wait`` is set if the
        response was not immediate."""
        if key in WAITING or (key is ApiKey.FETCH and asyncio.isfuture(wait)):
            return  # a future is a long poll; cold reads are coroutines
        if not self._admits():
            self._dropped.value += 1
            return
        self._spans.value += 1
        end_ns = self._clock.now_ms() * 1_000_000
        attributes, error = self._attributes(key, context, request, result)
        span = self._tracer.start_span(
            _name(key, attributes),
            context=self._root,
            kind=self._kind,
            attributes=attributes,
            start_time=end_ns - int(seconds * 1_000_000_000),
        )
        if error is not None:
            span.set_attribute("error.type", error.name)
            span.set_status(self._failed)
        span.end(end_ns)

    def _admits(self) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second <= self._spans_max

    def _attributes(
        self, key: ApiKey, context: RequestContext, request: Any, result: Any
    ) -> tuple[dict[str, Any], ErrorCode | None]:
        """By the conventions of messaging, and further ones with our prefix."""
        api = ALL_APIS[key]
        name, kind = OPERATIONS.get(key, (api.title, None))
        found: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.client.id": context.client_id,
            "messaging.consumer.group.name": getattr(request, "group_id", None),
            "network.peer.address": context.client_host,
            "enduser.id": str(context.principal),
            "riverrun.api": api.title,
            "riverrun.api.version": context.api_version,
            "riverrun.correlation_id": context.correlation_id,
            "riverrun.listener": context.listener,
        }
        topics, error = self._outcome(key, context, result)
        if len(topics) == 1:
            found["messaging.destination.name"] = topics[0]
        elif topics:
            found["riverrun.topics"] = topics[:TOPICS_MAX]
        return {name: value for name, value in found.items() if value is not None}, error

    def _outcome(
        self, key: ApiKey, context: RequestContext, result: Any
    ) -> tuple[list[str], ErrorCode | None]:
        """The topics in a response, and its first error. Responses with records are not read."""
        if key is ApiKey.PRODUCE and type(result) is bytes and len(result) <= DECODED_BYTES_MAX:
            try:
                result = decode_response(key, context.api_version, result)
            except MalformedRequest:
                return [], None
            names = [one.name or self._topic_name(one.topic_id) or "" for one in result.responses]
            codes = [
                part.error_code for one in result.responses for part in one.partition_responses
            ]
            failed = [code for code in codes if code is not ErrorCode.NONE]
            return list(dict.fromkeys(names)), failed[0] if failed else None
        code = getattr(result, "error_code", ErrorCode.NONE)
        return [], None if code is ErrorCode.NONE else code


def _name(key: ApiKey, attributes: Mapping[str, Any]) -> str:
    """``produce orders``, as the conventions want it, or the name of the API."""
    topic = attributes.get("messaging.destination.name")
    name = str(attributes["messaging.operation.name"])
    return f"{name} {topic}" if topic else name
