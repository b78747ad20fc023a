"""Health and metrics over a real socket."""

import asyncio
import sys

import pytest

from riverrun.ports.metrics import Metrics
from riverrun.server.network.http import HttpServer
from riverrun.server.network.prometheus import render


async def ask(raw: bytes, *, is_ready: bool = True) -> tuple[str, bytes]:
    metrics = Metrics()
    metrics.counter("riverrun_things_total", "Things.", kind="good").value += 3
    scrapes = metrics.counter("riverrun_scrapes_total", "Scrapes.")

    async def prepare_metrics() -> None:
        await asyncio.sleep(0)
        scrapes.value += 1

    health = {"ready": is_ready, "why": "a test"}
    server = HttpServer(metrics, lambda: health, prepare_metrics)
    loop = asyncio.get_running_loop()
    await server.start("127.0.0.1", 0)
    assert server.port
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(raw)
            response = await reader.read()
            writer.close()
    finally:
        await server.stop()
    assert loop.is_running()
    head, _, body = response.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body


def get(path: str, *, is_ready: bool = True) -> tuple[str, bytes]:
    return asyncio.run(ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), is_ready=is_ready))


def test_health() -> None:
    assert get("/health/live")[0] == "HTTP/1.1 200 OK"
    assert get("/health/ready") == ("HTTP/1.1 200 OK", b'{"ready": true, "why": "a test"}\n')
    assert get("/health/ready", is_ready=False)[0] == "HTTP/1.1 503 Service Unavailable"


def test_metrics_are_in_prometheus_form() -> None:
    status, body = get("/metrics")
    assert status == "HTTP/1.1 200 OK"
    assert b'riverrun_things_total{kind="good"} 3.0' in body
    assert b"riverrun_scrapes_total 1.0" in body, "the metrics are prepared first"


@pytest.mark.skipif(sys.platform != "linux", reason="the process is described by /proc")
def test_metrics_of_the_process_have_the_names_of_prometheus() -> None:
    text = render(Metrics()).decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("process_"))
    assert float(values["process_resident_memory_bytes"]) > 1 << 20
    assert float(values["process_open_fds"]) > 2
    assert float(values["process_cpu_seconds_total"]) > 0
    assert float(values["process_start_time_seconds"]) > 1.6e9


def test_counters_kept_elsewhere_are_counters() -> None:
    metrics = Metrics()
    metrics.counters("riverrun_words_total", "Words.", lambda: [({"of": "a"}, 2), ({"of": "b"}, 3)])
    text = render(metrics).decode()
    assert "# TYPE riverrun_words_total counter" in text
    assert 'riverrun_words_total{of="b"} 3.0' in text


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"x" * 9000, 400),
        (b"\x00\x00\x00\x20\x00\x12\x00\x04", 400),  # ApiVersions of a Kafka client
    ],
)
def test_invalid_request_gets_an_error_response(raw: bytes, status: int) -> None:
    assert asyncio.run(ask(raw))[0].startswith(f"HTTP/1.1 {status} ")


def test_head_has_no_body() -> None:
    assert asyncio.run(ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")) == ("HTTP/1.1 200 OK", b"")


def test_histogram_buckets_are_cumulative() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("riverrun_wait_seconds", "Waits.")
    for seconds in (0.0001, 0.004, 99.0):
        histogram.observe(seconds)
    text = render(metrics).decode()
    assert 'riverrun_wait_seconds_bucket{le="0.0005"} 1.0' in text
    assert 'riverrun_wait_seconds_bucket{le="0.005"} 2.0' in text
    assert 'riverrun_wait_seconds_bucket{le="+Inf"} 3.0' in text
    assert "riverrun_wait_seconds_count 3.0" in text
