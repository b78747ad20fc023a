"""The faults inside a node: files of a full disk, and connections that are silent."""

import asyncio
import errno
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from riverrun.ports.files import write_atomically
from riverrun.testing.faults.control import FaultsFile, NodeFaults, answer
from riverrun.testing.faults.disk import FillableDisk, LimitedFiles
from riverrun.testing.faults.network import PartitionedLoop

SILENCE_SECONDS = 0.2
WAIT_SECONDS_MAX = 30.0


@pytest.fixture
def space() -> FillableDisk:
    return FillableDisk()


@pytest.fixture
def files(space: FillableDisk) -> LimitedFiles:
    return LimitedFiles(space)


def test_a_file_on_a_full_disk_cannot_grow_but_be_overwritten(
    files: LimitedFiles, space: FillableDisk, tmp_path: Path
) -> None:
    file = files.open(str(tmp_path / "log"), create=True)
    file.write_at(0, b"12345")
    space.set_full(True)
    with pytest.raises(OSError) as caught:
        file.write_at(4, b"67")
    assert caught.value.errno == errno.ENOSPC
    assert files.free_bytes(str(tmp_path)) == 0
    file.write_at(0, b"54321")
    assert file.read_at(0, 10) == b"54321"
    space.set_full(False)
    file.write_at(5, b"6")
    assert file.size() == 6
    file.close()


def test_only_metadata_uses_the_space_of_deleted_files(
    files: LimitedFiles, space: FillableDisk, tmp_path: Path
) -> None:
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    (folder / "reserve").write_bytes(bytes(100))
    (tmp_path / "other").write_bytes(bytes(100))
    space.set_full(True)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(files, str(folder / "state"), bytes(10))
    files.unlink(str(folder / "reserve"))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(files, str(tmp_path / "checkpoint"), bytes(10))
    write_atomically(files, str(folder / "state"), bytes(60))
    write_atomically(files, str(folder / "state"), bytes(40))
    assert files.free_bytes(str(tmp_path)) == 60, "the replaced file gave its space back"
    file = files.open(str(tmp_path / "other"))
    file.truncate(50)
    file.close()
    assert files.free_bytes(str(tmp_path)) == 110


class Receiver(asyncio.Protocol):
    """Collects bytes and knows whether the connection is lost."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = asyncio.Queue[bytes]()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received.put_nowait(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


class BufferedReceiver(asyncio.BufferedProtocol):
    """A protocol with its own buffer, as that of a follower."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.received = asyncio.Queue[bytes]()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.received.put_nowait(bytes(self.buffer[:count]))


class Peer:
    """A server that keeps the protocol of each connection."""

    def __init__(self) -> None:
        self.accepted = asyncio.Queue[Receiver]()
        self.port = 0

    def connect(self) -> Receiver:
        made = Receiver()
        self.accepted.put_nowait(made)
        return made

    async def start(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server


async def next_bytes(receiver: Receiver | BufferedReceiver) -> bytes:
    return await asyncio.wait_for(receiver.received.get(), WAIT_SECONDS_MAX)


async def is_silent(receiver: Receiver | BufferedReceiver) -> bool:
    try:
        await asyncio.wait_for(receiver.received.get(), SILENCE_SECONDS)
    except TimeoutError:
        return True
    return False


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=PartitionedLoop) as runner:
        runner.run(scenario)


def current_loop() -> PartitionedLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PartitionedLoop)
    return loop


def test_a_silent_connection_neither_sends_nor_receives() -> None:
    async def scenario() -> None:
        loop, peer = current_loop(), Peer()
        server = await peer.start()
        _, here = await loop.create_connection(Receiver, "127.0.0.1", peer.port)
        there = await peer.accepted.get()
        assert isinstance(here, Receiver) and here.transport is not None
        loop.set_unreachable([peer.port])
        here.transport.write(b"lost")
        assert await is_silent(there)
        loop.set_unreachable([])
        await asyncio.wait_for(there.lost.wait(), WAIT_SECONDS_MAX)
        server.close()

    run(scenario())


@pytest.mark.parametrize("kind", [Receiver, BufferedReceiver])
def test_bytes_of_the_peer_arrive_after_the_partition(
    kind: type[Receiver] | type[BufferedReceiver],
) -> None:
    async def scenario() -> None:
        loop, peer = current_loop(), Peer()
        server = await peer.start()
        transport, here = await loop.create_connection(kind, "127.0.0.1", peer.port)
        there = await peer.accepted.get()
        assert isinstance(here, kind) and there.transport is not None
        there.transport.write(b"first")
        assert await next_bytes(here) == b"first"
        loop.set_unreachable([peer.port])
        there.transport.write(b"second")
        assert await is_silent(here)
        loop.set_unreachable([])
        assert await next_bytes(here) == b"second"
        transport.close()
        server.close()

    run(scenario())


def test_a_new_connection_waits_for_the_end_of_the_partition() -> None:
    async def scenario() -> None:
        loop, peer = current_loop(), Peer()
        server = await peer.start()
        loop.set_unreachable([peer.port])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_SECONDS):
                await loop.create_connection(Receiver, "127.0.0.1", peer.port)
        waiting = asyncio.create_task(loop.create_connection(Receiver, "127.0.0.1", peer.port))
        loop.set_unreachable([])
        transport, _ = await asyncio.wait_for(waiting, WAIT_SECONDS_MAX)
        transport.close()
        server.close()

    run(scenario())


def test_a_node_replies_when_the_faults_are_in_effect(tmp_path: Path) -> None:
    place = FaultsFile(tmp_path / "node-1.toml")
    assert place.read() == NodeFaults()
    with place.listen() as listener:
        listener.setblocking(True)
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        place.write(NodeFaults(is_disk_full=True))
        place.notify(lambda: False)
        thread.join()
        draft = FaultsFile(tmp_path / "node-1.toml.starting")
        assert draft.read().is_disk_full


def test_nobody_waits_for_a_paused_node(tmp_path: Path) -> None:
    place = FaultsFile(tmp_path / "node-1.toml")
    states = iter([False, False, True])  # the signal takes effect while we wait
    with place.listen():
        place.notify(lambda: next(states))
    with place.listen() as listener:
        for _ in range(int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 2):
            place.notify(lambda: True)
        assert listener.recv(100) == b"reload"
    with pytest.raises(ConnectionRefusedError):
        place.notify(lambda: True)
