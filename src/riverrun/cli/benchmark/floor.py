"""Costs of the machine itself: the kernel's receive and write, below which no server can go, and
the first touch of memory."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path

MB = 1_000_000
TOUCHED_BYTES = 6_000_000_000


def measure(chunk_bytes: int, megabytes: int = 300) -> float:
    """CPU milliseconds per MB of a process that receives chunks and writes each to a file."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    worker = context.Process(target=_receive, args=(sending, chunk_bytes))
    worker.start()
    port = receiving.recv()
    payload = os.urandom(chunk_bytes)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(megabytes * MB // chunk_bytes):
            connection.sendall(payload)
    cpu_seconds: float = receiving.recv()
    worker.join(30)
    return cpu_seconds / megabytes * 1000


def touch_memory(size: int = TOUCHED_BYTES) -> int:
    """Write this many bytes to a file, or as many as fit, and remove it; returns the bytes written.

    On a virtual machine the page cache grows into memory that the host must find first: writing
    there took 4.7 CPU seconds for 1.5 GB instead of 0.4, at a tenth of the speed. The first server
    measured must not pay for that.
    """
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        room = min(psutil.virtual_memory().available, psutil.disk_usage(folder).free) // 2
        chunk, count = bytes(MB), int(min(size, room)) // MB
        with (Path(folder) / "touched").open("wb", buffering=0) as file:
            for _ in range(count):
                file.write(chunk)
    return count * MB


def _receive(sending: object, chunk_bytes: int) -> None:
    buffer = memoryview(bytearray(chunk_bytes))
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        sending.send(server.getsockname()[1])  # type: ignore[attr-defined]
        connection, _ = server.accept()
        with connection, (Path(folder) / "floor").open("wb", buffering=0) as file:
            began = time.process_time()
            while True:
                filled = 0
                while filled < chunk_bytes:
                    count = connection.recv_into(buffer[filled:])
                    if count == 0:
                        sending.send(time.process_time() - began)  # type: ignore[attr-defined]
                        return
                    filled += count
                file.write(buffer)
