"""Spans of slow requests: which requests have one, what it says, and how it reaches a collector."""

from __future__ import annotations

import asyncio
import http.server
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from riverrun.model.errors import ErrorCode
from riverrun.ports.metrics import Metrics
from riverrun.server.dispatch.context import Peer, RequestContext
from riverrun.server.dispatch.router import Call, Router
from riverrun.server.settings import NodeSettings
from riverrun.server.tracing import SlowRequests, TracingSettings, with_environment
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import encode_response
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.cli.commands import Cli
from tests.processes import Riverrun, serve, until

from .fakes import FakeClock, frame, module

ORDERS = UUID(int=7)
BEAT = HeartbeatRequest(group_id="billing", generation_id=1, member_id="m")
SECONDS_MAX = 60


class Traced:
    """The tracer of a router, with the spans that it makes."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.slow = SlowRequests(
            provider.get_tracer("test"),
            TracingSettings(**settings),
            topic_name={ORDERS: "orders"}.get,
            clock=self.clock,
            metrics=self.metrics,
        )

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def ended(self, key: ApiKey, result: Any = None, **more: Any) -> None:
        version = more.pop("version", 13)
        request = more.pop("request", None)
        context = RequestContext(version, 42, "web-1", "10.0.0.9", "PLAINTEXT", 7, api_key=key)
        self.slow.ended(key, context, request, result, 0.25, **more)

    def count(self, name: str) -> int:
        [counter] = self.metrics.families[name].counters.values()
        return counter.value


def produced(version: int, code: ErrorCode, *names: str) -> bytes:
    topics = tuple(
        TopicProduceResponse(
            name=name,
            topic_id=ORDERS if version >= 13 else None,
            partition_responses=(
                PartitionProduceResponse(index=0, error_code=code, base_offset=5),
            ),
        )
        for name in names
    )
    return encode_response(ApiKey.PRODUCE, version, ProduceResponse(responses=topics))


# Which requests have a span


def router(traced: Traced, seconds: float) -> Router:
    def handle(*_: Any) -> HeartbeatResponse:
        traced.clock.now += seconds
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    return Router(
        object(),
        metrics=Metrics(),
        clock=traced.clock,
        modules={ApiKey.HEARTBEAT: module(handle)},
        tracer=traced.slow,
    )


@pytest.mark.parametrize(("seconds", "spans"), [(0.05, 0), (0.2, 1)])
def test_a_slow_request_has_a_span(seconds: float, spans: int) -> None:
    traced = Traced()
    data = frame(ApiKey.HEARTBEAT, 3, BEAT)
    router(traced, seconds).handle(memoryview(data)[4:], Peer("10.0.0.1", "PLAINTEXT", 7))
    assert len(traced.spans) == spans


def test_a_request_that_waits_has_a_span_when_it_ends() -> None:
    traced = Traced()

    async def later() -> HeartbeatResponse:
        traced.clock.now += 3
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    made = Router(
        object(),
        metrics=Metrics(),
        clock=traced.clock,
        modules={ApiKey.HEARTBEAT: module(lambda *_: later())},
        tracer=traced.slow,
    )

    async def run() -> None:
        data = frame(ApiKey.HEARTBEAT, 3, BEAT)
        call = made.handle(memoryview(data)[4:], Peer("10.0.0.1", "PLAINTEXT", 7))
        assert isinstance(call, Call) and call.wait is not None
        done = asyncio.ensure_future(call.wait)
        await done
        made.finish(call, done)

    asyncio.run(run())
    [span] = traced.spans
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(3)


def test_waits_that_clients_ask_for_are_not_slow() -> None:
    traced = Traced()

    async def run() -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        traced.ended(ApiKey.FETCH, [], wait=waiting)
        traced.ended(ApiKey.JOIN_GROUP)
        traced.ended(ApiKey.SYNC_GROUP)

    asyncio.run(run())
    assert traced.spans == []
    traced.ended(ApiKey.FETCH, [])  # a cold read
    assert [span.name for span in traced.spans] == ["fetch"]


def test_the_number_of_spans_is_limited() -> None:
    traced = Traced(spans_max=3)
    for _ in range(10):
        traced.ended(ApiKey.METADATA)
    assert len(traced.spans) == 3
    traced.clock.now += 1
    traced.ended(ApiKey.METADATA)
    assert traced.count("riverrun_trace_spans_total") == 4
    assert traced.count("riverrun_trace_spans_dropped_total") == 7


# What a span says


@pytest.mark.parametrize("version", [9, 13])
def test_a_span_of_produce_names_the_topic(version: int) -> None:
    traced = Traced()
    traced.ended(ApiKey.PRODUCE, produced(version, ErrorCode.NONE, "orders"), version=version)
    [span] = traced.spans
    assert span.name == "produce orders"
    assert span.kind is SpanKind.SERVER
    assert span.parent is None
    assert span.status.status_code is StatusCode.UNSET
    assert (span.end_time - span.start_time) / 1e9 == 0.25
    assert span.end_time == traced.clock.now_ms() * 1_000_000
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "produce",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": "web-1",
        "network.peer.address": "10.0.0.9",
        "enduser.id": "User:ANONYMOUS",
        "riverrun.api": "Produce",
        "riverrun.api.version": version,
        "riverrun.correlation_id": 42,
        "riverrun.listener": "PLAINTEXT",
    }


def test_a_span_of_several_topics_lists_them() -> None:
    traced = Traced()
    names = [f"t{number}" for number in range(20)]
    traced.ended(ApiKey.PRODUCE, produced(9, ErrorCode.NONE, *names), version=9)
    [span] = traced.spans
    assert span.name == "produce"
    assert list(span.attributes["riverrun.topics"]) == names[:10]


def test_a_failed_request_has_the_name_of_its_error() -> None:
    traced = Traced()
    body = produced(9, ErrorCode.NOT_ENOUGH_REPLICAS, "orders")
    traced.ended(ApiKey.PRODUCE, body, version=9)
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    traced.ended(ApiKey.HEARTBEAT, response, request=BEAT, version=3)
    produce, beat = traced.spans
    assert produce.attributes["error.type"] == "NOT_ENOUGH_REPLICAS"
    assert beat.attributes["error.type"] == "REBALANCE_IN_PROGRESS"
    assert beat.attributes["messaging.consumer.group.name"] == "billing"
    assert {span.status.status_code for span in traced.spans} == {StatusCode.ERROR}


# Settings


def settings(**texts: str) -> NodeSettings:
    return NodeSettings.from_texts({name.replace("_", "."): text for name, text in texts.items()})


def test_the_variables_of_opentelemetry_name_the_endpoint() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
    found = with_environment(settings(), base)
    assert found.tracing.url == "http://collector:4318/v1/traces"
    own = {**base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other:4318/v1/traces"}
    assert with_environment(settings(), own).tracing.url == "http://other:4318/v1/traces"
    given = settings(tracing_endpoint="https://mine")
    assert with_environment(given, base).tracing.url == "https://mine/v1/traces"
    assert with_environment(settings(), {}).tracing.endpoint == ""


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_node_without_an_endpoint_loads_no_library() -> None:
    program = "import sys, riverrun.server.main; print('opentelemetry' in sys.modules)"
    assert run_python(program) == "False\n"


def test_without_the_extra_the_variable_is_ignored_and_the_setting_is_refused() -> None:
    program = """
import sys
from types import SimpleNamespace
sys.modules["opentelemetry"] = None
from riverrun.model.settings import SettingError
from riverrun.server.settings import NodeSettings
from riverrun.server.tracing import build_tracer, with_environment
plain = NodeSettings.from_texts({})
kept = with_environment(plain, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
print(kept.tracing.endpoint == "")
named = NodeSettings.from_texts({"tracing.endpoint": "http://c:4318"})
try:
    build_tracer(SimpleNamespace(settings=named))
except SettingError as error:
    print(error.reason)
"""
    lines = run_python(program).splitlines()
    assert lines[-2:] == ["True", "it needs pip install 'riverrun[otel]'"]


# A real node and a real receiver


class Receiver:
    """A collector: decodes OTLP over HTTP. Spans are read from the queue."""

    def __init__(self) -> None:
        self.spans: queue.Queue[tuple[dict[str, str], Any]] = queue.Queue()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/x-protobuf"
                if self.path == "/v1/traces":
                    receiver.take(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {one.key: one.value.string_value for one in part.resource.attributes}
            for scope in part.scope_spans:
                for span in scope.spans:
                    self.spans.put((resource, span))

    def wait_for(self, name: str) -> tuple[dict[str, str], Any]:
        while True:
            resource, span = self.spans.get(timeout=SECONDS_MAX)
            if span.name == name:
                return resource, span


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.slow
def test_a_node_sends_spans_to_a_collector(receiver: Receiver, tmp_path: Path) -> None:
    texts = {"tracing.endpoint": receiver.url, "tracing.slow.request.ms": "0"}
    with serve(tmp_path, texts, peer="riverrun") as node:
        cli = Cli(node.bootstrap)
        cli.run("topics", "create", "orders")
        receiver.wait_for("CreateTopics")
        cli.write("orders", "a\nb\n")
        resource, span = receiver.wait_for("produce orders")
        assert resource["service.name"] == "riverrun"
        assert resource["service.instance.id"] == "1"
        found = {one.key: one.value.string_value for one in span.attributes}
        assert found["messaging.destination.name"] == "orders"
        assert found["messaging.client.id"] == "riverrun-cli"
        assert span.parent_span_id == b""


@pytest.mark.slow
def test_a_collector_that_is_gone_disturbs_nothing(receiver: Receiver, tmp_path: Path) -> None:
    receiver.server.shutdown()
    receiver.server.server_close()
    texts = {"tracing.endpoint": receiver.url, "tracing.slow.request.ms": "0"}
    with serve(tmp_path, texts, peer="riverrun") as node:
        assert isinstance(node, Riverrun)
        cli = Cli(node.bootstrap)
        cli.run("topics", "create", "orders")
        cli.write("orders", "a\nb\n")
        assert cli.read("orders", "--from-beginning", "--until-end") == "a\nb\n"
        until(
            lambda: "traces are not sent" in node.logs(),
            seconds=SECONDS_MAX,
            what="the node warns",
        )
        node.kill(signal.SIGTERM)
        node.wait_gone()
        assert node.logs().count("traces are not sent") == 1
