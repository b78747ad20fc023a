"""Attacks on the HTTP port of a node: paths, headers and slow requests."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.secure_node import SecureNode
from tests.security.bystander import SECONDS_MAX, Bystander

pytestmark = pytest.mark.slow
LAST = "Host: 127.0.0.1\r\nConnection: close\r\n\r\n"
"""Ends the headers of the last request of a connection."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(tmp_path_factory.mktemp("http") / "data")
    assert node.run("topics", "create", "work").returncode == 0
    with Bystander(node) as good:
        good.progress()
        yield node
        good.progress()
    assert good.errors == []
    assert node.stop() == 0


def http(secure: SecureNode, raw: bytes) -> bytes:
    host, _, port = secure.told["nodes"][0]["http"].rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as one:
        received = b""
        with contextlib.suppress(ConnectionError):
            one.sendall(raw)
            while part := one.recv(65536):
                received += part
    return received


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/metrics/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/health/ready/..%2f..%2fetc/passwd",
        "file:///etc/passwd",
        "/\0/etc/passwd",
    ],
)
def test_paths_lead_nowhere(secure: SecureNode, path: str) -> None:
    answer = http(secure, f"GET {path} HTTP/1.1\r\n{LAST}".encode())
    assert answer[:13] in (b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
        b"\r\n" * 100_000,
        b"GET / HTTP/1.1 HTTP/1.1\r\n\r\n",
        b"GET\r\n\r\n",
    ],
)
def test_strange_requests_are_refused(secure: SecureNode, raw: bytes) -> None:
    assert http(secure, raw)[:13] in (b"HTTP/1.1 400 ", b"")


def test_a_wrong_tls_handshake_ends_the_connection(secure: SecureNode) -> None:
    """The port also serves HTTPS. It responds with a TLS alert, or not at all."""
    assert http(secure, b"\x16\x03\x01\x00\x05hello")[:2] in (b"\x15\x03", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "TRACE", "CONNECT"])
def test_nothing_can_be_changed_over_http(secure: SecureNode, method: str) -> None:
    answer = http(secure, f"{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 405 ")


def test_a_header_does_not_return_in_the_answer(secure: SecureNode) -> None:
    answer = http(
        secure, b"GET /x?a=%0d%0aSet-Cookie:1 HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n"
    )
    assert answer
    assert b"evil" not in answer
    assert b"Set-Cookie" not in answer


@pytest.mark.parametrize("path", ["/metrics", "/metrics/kafka", "/health/live", "/health/ready"])
def test_probes_may_use_any_host_name(secure: SecureNode, path: str) -> None:
    answer = http(secure, f"GET {path} HTTP/1.1\r\nHost: probe.example\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/ui/", "/api/v1/session", "/v3/clusters"])
def test_a_page_cannot_read_the_console_by_a_name_of_its_own(secure: SecureNode, path: str) -> None:
    """DNS rebinding: the name of the page's site leads to this node."""
    headers = "Host: rebound.example\r\nOrigin: http://rebound.example\r\nConnection: close\r\n\r\n"
    answer = http(secure, f"GET {path} HTTP/1.1\r\n{headers}".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"console.allowed.hosts" in answer
    assert b"rebound" not in answer


def test_slow_requests_do_not_keep_others_out(secure: SecureNode) -> None:
    host, _, port = secure.told["nodes"][0]["http"].rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            one = stack.enter_context(socket.create_connection((host, int(port)), SECONDS_MAX))
            one.sendall(b"GET / HTTP/1.1\r\n")
        answer = http(secure, b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
