"""Standard input and output for the event loop: waits for pipes and terminals without blocking it.

Descriptors keep their mode, because they may be shared with the shell. A ready pipe accepts or
provides a little data without blocking, so each step polls first and transfers no more than that.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import Callable

READ_BYTES = 256 * 1024
PIPE_BYTES = 4096
"""Bytes that a writable pipe accepts without blocking (PIPE_BUF)."""


class OutputFailed(Exception):
    """Standard output cannot be written, for example because its disk is full."""


def is_file(descriptor: int) -> bool:
    """Whether the descriptor is a file. Files are always ready, and epoll rejects them."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or _is_other_device(descriptor, mode)


def _is_other_device(descriptor: int, mode: int) -> bool:
    return stat.S_ISCHR(mode) and not os.isatty(descriptor)


class Reader:
    """Reads bytes as they arrive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_file = is_file(descriptor)

    async def read(self) -> bytes:
        """The available bytes, or the next ones; empty at the end."""
        if not self._is_file and not self.is_ready():
            await _ready(
                asyncio.get_running_loop().add_reader,
                asyncio.get_running_loop().remove_reader,
                self._descriptor,
            )
        return os.read(self._descriptor, READ_BYTES)

    def is_ready(self) -> bool:
        if self._is_file:
            return True
        return bool(select.select([self._descriptor], [], [], 0)[0])

    async def is_ready_within(self, seconds: float) -> bool:
        if self.is_ready():
            return True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await _ready(loop.add_reader, loop.remove_reader, self._descriptor)
        except TimeoutError:
            return False
        return True


class Writer:
    """Writes bytes at the reader's speed; ``BrokenPipeError`` when the reader is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_file = is_file(descriptor)

    async def write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        loop = asyncio.get_running_loop()
        while view:
            if not self._is_file and not select.select([], [self._descriptor], [], 0)[1]:
                await _ready(loop.add_writer, loop.remove_writer, self._descriptor)
            try:
                size = os.write(self._descriptor, view if self._is_file else view[:PIPE_BYTES])
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error
            view = view[size:]

    async def wait_reader_closed(self) -> None:
        """Returns when the reader closes the pipe, even if nothing is written; otherwise
        never."""
        if not stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            await asyncio.get_running_loop().create_future()
        # The write end of a pipe becomes readable only when its reader has closed it.
        loop = asyncio.get_running_loop()
        await _ready(loop.add_reader, loop.remove_reader, self._descriptor)


async def _ready(
    add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], bool], descriptor: int
) -> None:
    event = asyncio.Event()
    add(descriptor, event.set)
    try:
        await event.wait()
    finally:
        remove(descriptor)
