"""Health and metrics over HTTP, on the node's own event loop.

    GET /health/live     200 while the event loop runs
    GET /health/ready    200 if the node serves clients, else 503; the body has the reason
    GET /metrics         the text format of Prometheus
    GET /metrics/kafka   the same under the names of Kafka's dashboards; ?partitions=1 for all
    other paths          the console, in a process of its own (see ``console_relay``); also HTTPS

A connection carries one request, with headers of at most 8 KiB that must arrive in ten seconds. If
its first request is for the console, the console serves the whole connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import structlog

from riverrun.ports.metrics import Metrics
from riverrun.server.network.console_relay import ConsoleRelay

HEADER_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 10.0
CONNECTIONS_MAX = 100
METRICS = ("/metrics", "/metrics/kafka")
OWN_PATHS: Final = ("/health", "/metrics")
PAGES: Final = "/ui/"
METRICS_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
FIRST_BYTE_MIN = ord("A")
"""A request begins with a method. A request of Kafka's protocol begins with a zero byte."""

HttpResponse = tuple[int, str, bytes]
"""Status, content type and body."""
Health = Callable[[], Mapping[str, object]]
REASONS = {
    200: "OK",
    302: "Found",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

log = structlog.get_logger("riverrun.http")


class HttpServer:
    """The HTTP server of one node."""

    def __init__(
        self,
        metrics: Metrics,
        health: Health,
        prepare_metrics: Callable[[], Awaitable[None]],
        console: ConsoleRelay | None = None,
    ) -> None:
        """``prepare_metrics`` is awaited before each scrape."""
        self._metrics = metrics
        self._health = health
        self.prepare_metrics = prepare_metrics
        self.console = console
        self._server: asyncio.Server | None = None
        self.port = 0
        """The port in use; the system chooses it if ``start`` gets 0."""
        self._open: dict[_HttpConnection, None] = {}

    async def start_at(self, address: str) -> None:
        """``HOST:PORT``, as in the setting http.listener."""
        host, _, port = address.rpartition(":")
        await self.start(host, int(port))

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _HttpConnection(self), host, port)
        for listening in self._server.sockets:
            self.port = listening.getsockname()[1]
        if self.console is not None:
            log.info("console is available", address=f"http://{host}:{self.port}/")

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()
        if self.console is not None:
            await self.console.stop()

    def respond(self, method: str, path: str) -> HttpResponse:
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b"only GET and HEAD are supported\n"
        path, _, query = path.partition("?")
        match path:
            case "/health/live":
                return 200, "application/json", b'{"live": true}\n'
            case "/health/ready":
                health = self._health()
                status = 200 if health.get("ready") else 503
                return status, "application/json", json.dumps(health).encode() + b"\n"
            case "/metrics":
                from riverrun.server.network.prometheus import render  # noqa: PLC0415 (see there)

                return 200, METRICS_FORMAT, render(self._metrics)
            case "/metrics/kafka":
                from riverrun.server.network.prometheus import render_kafka  # noqa: PLC0415

                has_partitions = "partitions=1" in query.split("&")
                return (
                    200,
                    METRICS_FORMAT,
                    render_kafka(self._metrics, has_partitions=has_partitions),
                )
            case "/":
                return 200, "text/plain", b"/health/live\n/health/ready\n/metrics\n/metrics/kafka\n"
            case _:
                return (
                    404,
                    "text/plain",
                    b"try /health/live, /health/ready or /metrics\n",
                )

    def opened(self, connection: _HttpConnection) -> None:
        """Admit a connection. If there are too many, the oldest one must go: it is slow."""
        if len(self._open) >= CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.abort()
        self._open[connection] = None

    def closed(self, connection: _HttpConnection) -> None:
        self._open.pop(connection, None)


class _HttpConnection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._scrape: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a type of its own
        self._server.opened(self)
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS_MAX, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._scrape is not None:
            return  # the rest of the request has no meaning
        self._received += data
        console = self._server.console
        if console is not None and console.takes(self._received[0]):
            self._hand_over(console)
            return
        if self._received[0] < FIRST_BYTE_MIN:
            self._send("GET", (400, "text/plain", b"this port serves HTTP, not Kafka clients\n"))
            return
        end = self._received.find(b"\r\n\r\n")
        words = bytes(self._received).partition(b"\r\n")[0].decode("latin-1").split(" ")
        is_line = b"\r\n" in self._received and len(words) == 3 and words[2].startswith("HTTP/1.")
        if is_line and console is not None and is_of_console(words[1]):
            self._hand_over(console)
            return
        if end < 0:
            if len(self._received) > HEADER_BYTES_MAX:
                self._send("GET", (400, "text/plain", b"the headers are too long\n"))
            return
        if not is_line:
            self._send("GET", (400, "text/plain", b"not an HTTP/1 request\n"))
            return
        if console is not None and words[1] == "/" and self._is_browser(end):
            self._send(words[0], (302, "text/plain", b"the console is at /ui/\n"), PAGES)
        elif words[1].partition("?")[0] in METRICS:
            loop = asyncio.get_running_loop()
            self._scrape = loop.create_task(self._send_metrics(words[0], words[1]))
        else:
            self._send(words[0], self._server.respond(words[0], words[1]))

    def _hand_over(self, console: ConsoleRelay) -> None:
        """Let the console serve this connection from its first byte."""
        transport, self._transport = self._transport, None
        assert transport is not None, "bytes come from a transport"
        self._forget()
        console.adopt(transport, bytes(self._received))

    def _is_browser(self, end: int) -> bool:
        headers = bytes(self._received[:end]).lower().split(b"\r\n")[1:]
        return any(line.startswith(b"accept:") and b"text/html" in line for line in headers)

    async def _send_metrics(self, method: str, path: str) -> None:
        await self._server.prepare_metrics()
        self._send(method, self._server.respond(method, path))

    def _send(self, method: str, response: HttpResponse, location: str = "") -> None:
        status, kind, body = response
        line = f"Location: {location}\r\n" if location else ""
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\n{line}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(head if method == "HEAD" else head + body)
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._scrape is not None:
            self._scrape.cancel()
        self._server.closed(self)


def is_of_console(target: str) -> bool:
    """Whether the console serves the target of a request."""
    path = target.partition("?")[0]
    is_own = any(path == own or path.startswith(f"{own}/") for own in OWN_PATHS)
    return path.startswith("/") and path != "/" and not is_own
