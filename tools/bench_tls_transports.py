"""CPU time of a TLS server by transport: `python -m tools.bench_tls_transports`, a Markdown table.

The server is a process with one connection, shaped as ours: a ``BufferedProtocol`` that takes
frames out of one buffer, and writes each response as a list of parts. The client is another process
with blocking sockets, the same for all rows. Only the CPU time of the server counts, so other work
on the machine disturbs little. Rows differ in the transport, and in whether small neighbouring
parts of a response are joined before they are encrypted. `aiofastnet` is measured if it can be
imported.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from riverrun.cli.certs.authority import Authority
from riverrun.server.network.tls_acceptor import joined_parts

HOST = "127.0.0.1"
MB = 1_000_000
LENGTH = struct.Struct(">i")
ACK = bytes(50)
PART_HEADER = bytes(60)
"""As long as the header of a partition in a Fetch response."""
RECORD_HEADER_BYTES, RECORD_BYTES = 9, 1000
BUFFER_BYTES = 256 * 1024
IN_FLIGHT = 4
"""Requests that the client sends before it waits for a response."""
SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Variant:
    name: str
    has_tls: bool = True
    is_joined: bool = False
    is_fastnet: bool = False


@dataclass(frozen=True)
class TransferShape:
    """Uploads are requests of this size. Downloads are responses of 1 MB, in parts of this size,
    each after a header."""

    name: str
    size: int
    is_upload: bool
    has_small_records: bool = False
    """librdkafka encrypts the header and the value of each record of 1 KB separately, so a request
    has two small TLS records for each."""


VARIANTS = (
    Variant("no TLS", has_tls=False),
    Variant("ssl on uvloop, parts as they are"),
    Variant("ssl on uvloop, small parts joined", is_joined=True),
    Variant("aiofastnet, parts as they are", is_fastnet=True),
    Variant("aiofastnet, small parts joined", is_joined=True, is_fastnet=True),
)
SHAPES = (
    TransferShape("upload 16 KB", 16_384, is_upload=True),
    TransferShape("upload 64 KB", 65_536, is_upload=True),
    TransferShape("upload 1 MB", MB, is_upload=True),
    TransferShape("upload 16 KB, by librdkafka", 16_384, is_upload=True, has_small_records=True),
    TransferShape("upload 64 KB, by librdkafka", 65_536, is_upload=True, has_small_records=True),
    TransferShape("upload 1 MB, by librdkafka", MB, is_upload=True, has_small_records=True),
    TransferShape("download, parts of 1 KB", 1_000, is_upload=False),
    TransferShape("download, parts of 16 KB", 16_384, is_upload=False),
    TransferShape("download, parts of 64 KB", 65_536, is_upload=False),
    TransferShape("download, one part of 1 MB", MB, is_upload=False),
)


class TransferServer(asyncio.BufferedProtocol):
    """Answers each frame: an upload by a few bytes, anything else by 1 MB in parts."""

    def __init__(
        self, shape: TransferShape, done: asyncio.Future[float], *, is_joined: bool
    ) -> None:
        self._done = done
        self._is_upload = shape.is_upload
        self._is_joined = is_joined
        self._capacity = max(shape.size + 4 if shape.is_upload else 0, BUFFER_BYTES)
        self._view = memoryview(bytearray(self._capacity * 2))
        self._start = self._end = 0
        self._transport: Any = None
        self._began = 0.0
        self._is_paused = False
        self._waiting = 0
        batch = memoryview(os.urandom(MB))
        self._parts: list[Any] = [LENGTH.pack(len(ACK)), ACK]
        if not shape.is_upload:
            cuts = range(0, MB, shape.size)
            self._parts = [
                part for at in cuts for part in (PART_HEADER, batch[at : at + shape.size])
            ]
            self._parts.insert(0, LENGTH.pack(sum(map(len, self._parts))))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._began = time.process_time()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(time.process_time() - self._began)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._respond()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        while self._end - self._start >= 4:
            size: int = LENGTH.unpack_from(self._view, self._start)[0]
            if self._end - self._start < 4 + size:
                break
            self._start += 4 + size
            self._waiting += 1
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end > self._capacity:
            held = self._end - self._start
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held
        self._respond()

    def _respond(self) -> None:
        while self._waiting and not self._is_paused:
            self._waiting -= 1
            parts = joined_parts(self._parts) if self._is_joined else self._parts
            self._transport.writelines(parts)


def serve(sending: Any, folder: str, variant: Variant, shape: TransferShape) -> None:
    """The server's process: sends its port, and the CPU seconds of one connection."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[float] = loop.create_future()
        with socket.create_server((HOST, 0)) as listening:
            listening.setblocking(False)
            sending.send(listening.getsockname()[1])
            accepted, _ = await loop.sock_accept(listening)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = None
        if variant.has_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(f"{folder}/node.pem")

        def connect() -> TransferServer:
            return TransferServer(shape, done, is_joined=variant.is_joined)

        if variant.is_fastnet:
            fastnet = importlib.import_module("aiofastnet")
            await fastnet.connect_accepted_socket(loop, connect, accepted, ssl=context)
        else:
            await loop.connect_accepted_socket(connect, accepted, ssl=context)
        sending.send(await done)

    uvloop.run(asyncio.wait_for(run(), SECONDS_MAX))


@contextlib.contextmanager
def connected(port: int, folder: str, variant: Variant) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, port), timeout=SECONDS_MAX) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not variant.has_tls:
            yield plain
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(f"{folder}/ca.pem")
        with context.wrap_socket(plain, server_hostname=HOST) as encrypted:
            yield encrypted


def send(connection: socket.socket, pieces: Sequence[bytes]) -> None:
    """Encrypt each piece for itself, and let the kernel send them together."""
    if len(pieces) > 1:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    for piece in pieces:
        connection.sendall(piece)
    if len(pieces) > 1:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)


def transfer(connection: socket.socket, shape: TransferShape, count: int) -> None:
    """Send requests and read all of their responses."""
    body = os.urandom(shape.size) if shape.is_upload else bytes(100)
    request = LENGTH.pack(len(body)) + body
    pieces = [request]
    if shape.has_small_records and isinstance(connection, ssl.SSLSocket):
        ends = range(0, len(request), RECORD_HEADER_BYTES + RECORD_BYTES)
        cuts = sorted({*ends, *(end + RECORD_HEADER_BYTES for end in ends), len(request)})
        pieces = [request[start:end] for start, end in itertools.pairwise(cuts)]
    buffer = memoryview(bytearray(BUFFER_BYTES))
    for number in range(count + IN_FLIGHT):
        if number < count:
            send(connection, pieces)
        if number >= IN_FLIGHT:
            head = bytearray()
            while len(head) < 4:
                head += connection.recv(4 - len(head))
            left: int = LENGTH.unpack(head)[0]
            while left:
                received = connection.recv_into(buffer[: min(left, len(buffer))])
                if not received:
                    raise ConnectionError("the server closed the connection")
                left -= received


def measure(folder: str, variant: Variant, shape: TransferShape, megabytes: int) -> float:
    """CPU milliseconds of the server per MB."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(sending, folder, variant, shape))
    server.start()
    try:
        if not receiving.poll(SECONDS_MAX):
            raise TimeoutError("the server did not start")
        with connected(receiving.recv(), folder, variant) as connection:
            each = shape.size if shape.is_upload else MB
            transfer(connection, shape, max(megabytes * MB // each, 1))
        if not receiving.poll(SECONDS_MAX):
            raise TimeoutError("the server did not end")
        seconds: float = receiving.recv()
    finally:
        server.join(5)
        if server.is_alive():
            server.kill()
    return seconds / megabytes * 1000


def table(
    variants: Sequence[Variant], shapes: Sequence[TransferShape], megabytes: int, rounds: int
) -> Iterator[str]:
    """Lines of Markdown. Rounds alternate between the variants, and the median counts."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder), name="bench")
        authority.issue(Path(folder) / "node.pem", name="node", hosts=(HOST,))
        yield "| server CPU ms/MB | " + " | ".join(each.name for each in variants) + " |"
        yield "|---|" + "---:|" * len(variants)
        for shape in shapes:
            found: dict[str, list[float]] = {each.name: [] for each in variants}
            for _ in range(rounds):
                for variant in variants:
                    found[variant.name].append(measure(folder, variant, shape, megabytes))
            medians = [f"{statistics.median(values):.2f}" for values in found.values()]
            yield f"| {shape.name} | " + " | ".join(medians) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="how much in each round")
    parser.add_argument("--only", default="", help="only shapes whose name has this text")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each variant, alternating")
    options = parser.parse_args()
    has_fastnet = importlib.util.find_spec("aiofastnet") is not None
    variants = [each for each in VARIANTS if has_fastnet or not each.is_fastnet]
    shapes = [each for each in SHAPES if options.only in each.name]
    for line in table(variants, shapes, options.megabytes, options.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
