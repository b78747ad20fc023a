"""New TLS connections per second: each completes a handshake and gets a response to ApiVersions.

The clients are threads with blocking sockets. They spend their time in OpenSSL, which runs without
the interpreter's lock. No session is resumed.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.cli.benchmark.clusters import BenchmarkNode
from riverrun.cli.benchmark.load import BenchmarkError, Servers
from riverrun.wire.apis import KNOWN_APIS, ApiKey
from riverrun.wire.codec import encode_request
from riverrun.wire.headers import LENGTH, request_frame
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest

THREADS = 4
CONNECTIONS_MAX = 20_000
"""A closed connection keeps its port for a minute."""
SECONDS = 6.0
CALL_SECONDS_MAX = 10.0


@dataclass(slots=True)
class HandshakeCount:
    """Counted by several threads at once."""

    count: int = 0
    cipher: str = ""
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_ms_each(self) -> float:
        return self.cpu_seconds / self.count * 1000


def count_handshakes(node: BenchmarkNode, trusted: Path, seconds: float) -> HandshakeCount:
    """Connect to a node as often as possible for a while."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    found, lock = HandshakeCount(), threading.Lock()
    servers = Servers([node.pid])
    cpu, began = servers.cpu_seconds(), time.monotonic()

    def connect() -> None:
        while time.monotonic() - began < seconds and found.count < CONNECTIONS_MAX:
            try:
                cipher = ask_versions(node.address, context)
            except OSError as error:
                found.failures.append(str(error))
                return
            with lock:
                found.count += 1
                found.cipher = cipher

    threads = [threading.Thread(target=connect) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 2 * CALL_SECONDS_MAX)
    found.seconds = time.monotonic() - began
    found.cpu_seconds = servers.cpu_seconds() - cpu
    if found.failures or not found.count:
        reason = found.failures[0] if found.failures else "no handshake was completed"
        raise BenchmarkError(f"connections to {node.address} failed: {reason}")
    return found


def ask_versions(address: str, context: ssl.SSLContext) -> str:
    """Open a connection, ask for the API versions, and close it; returns the cipher."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=CALL_SECONDS_MAX)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with plain, context.wrap_socket(plain, server_hostname=host) as encrypted:
        encrypted.sendall(_REQUEST)
        (size,) = LENGTH.unpack(_receive(encrypted, 4))
        _receive(encrypted, size)
        chosen = encrypted.cipher()
    assert chosen is not None, "a TLS connection has a cipher"
    return chosen[0]


def _receive(encrypted: ssl.SSLSocket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        more = encrypted.recv(count - len(received))
        if not more:
            raise ConnectionError("the server closed the connection")
        received += more
    return bytes(received)


_REQUEST = request_frame(
    KNOWN_APIS[ApiKey.API_VERSIONS], 0, 1, "bench",
    encode_request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
)  # fmt: skip
