"""The proxy: identification of sources, and faults of each direction."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.chaos.faults.link_faults import ANY, CLIENTS, Direction, LinkFault, LinkFaults, Mode
from riverrun.chaos.faults.network_control import NetworkControl
from riverrun.chaos.faults.proxy import ProxyRoute
from tests.processes import free_ports, until

SHORT = 0.2


def test_later_fault_takes_precedence() -> None:
    faults = LinkFaults()
    slow, held = LinkFault(delay_ms=5), LinkFault(mode=Mode.HOLD)
    faults.put(Direction(ANY, "2"), slow)
    faults.put(Direction("1", "2", "client"), held)
    assert faults.on("1", "2", "client") == held
    assert faults.on("1", "2", "controller") == slow
    assert faults.on("2", "1", "client").is_clear
    faults.put(Direction("1", "2", "client"), LinkFault())
    assert faults.on("1", "2", "client") == slow
    faults.clear()
    assert faults.on("1", "2", "client").is_clear


class Echo:
    """A listener that stands for node 2."""

    def __init__(self, network: NetworkControl, port: int, target_port: int) -> None:
        self.network, self.port = network, port
        self.listener = socket.create_server(("127.0.0.1", target_port))
        self.listener.settimeout(5)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a new connection through the proxy."""
        near = until(self._try, seconds=5, what="the proxy listens")
        return near, self.accept()

    def _try(self) -> socket.socket | None:
        with contextlib.suppress(ConnectionRefusedError):
            near = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            near.settimeout(5)
            return near
        return None

    def accept(self) -> socket.socket:
        """The next connection that is not a probe of the listener."""
        while True:
            far, _ = self.listener.accept()
            far.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                if far.recv(1, socket.MSG_PEEK) == b"":
                    far.close()
                    continue
            far.settimeout(5)
            return far


@pytest.fixture
def echo() -> Iterator[Echo]:
    port = free_ports(2)
    route = ProxyRoute(node="2", channel="client", port=port, target_port=port + 1)
    with NetworkControl([route]) as network:
        yield Echo(network, port, port + 1)


def _is_silent(end: socket.socket) -> bool:
    end.settimeout(SHORT)
    try:
        return end.recv(100) is None
    except TimeoutError:
        return True
    finally:
        end.settimeout(5)


def test_proxy_forwards_both_directions(echo: Echo) -> None:
    near, far = echo.connect()
    near.sendall(b"ask")
    assert far.recv(10) == b"ask"
    far.sendall(b"answer" * 100_000)
    received = b""
    while len(received) < 600_000:
        received += near.recv(65536)
    near.shutdown(socket.SHUT_WR)
    assert far.recv(10) == b""


def test_connection_that_both_sides_end_is_closed_after_its_last_byte(echo: Echo) -> None:
    descriptors = Path(f"/proc/{echo.network.pid}/fd")
    first = echo.connect()
    before = len(list(descriptors.iterdir()))
    for _ in range(5):
        near, far = echo.connect()
        near.shutdown(socket.SHUT_WR)
        assert far.recv(10) == b""
        sender = threading.Thread(target=_send_and_close, args=(far, b"answer" * 500_000))
        sender.start()
        received = 0
        while data := near.recv(65536):
            received += len(data)
        assert received == 3_000_000
        sender.join()
        near.close()
    until(
        lambda: len(list(descriptors.iterdir())) <= before,
        seconds=5,
        what="the proxy closes its sockets",
    )
    assert not _is_closed(first)


def _send_and_close(end: socket.socket, data: bytes) -> None:
    end.sendall(data)
    end.close()


def _is_closed(ends: tuple[socket.socket, socket.socket]) -> bool:
    near, far = ends
    near.sendall(b"still open")
    return far.recv(10) != b"still open"


def test_hold_delays_one_direction(echo: Echo) -> None:
    near, far = echo.connect()
    echo.network.block(2, CLIENTS)
    near.sendall(b"ask")
    assert far.recv(10) == b"ask"
    far.sendall(b"answer")
    assert _is_silent(near)
    echo.network.heal()
    assert near.recv(10) == b"answer"


def test_drop_loses_bytes_and_resets_the_connection_afterwards(
    echo: Echo,
) -> None:
    near, far = echo.connect()
    echo.network.separate(CLIENTS, 2, mode=Mode.DROP)
    near.sendall(b"ask")
    assert _is_silent(far)
    echo.network.heal()
    with pytest.raises(ConnectionResetError):
        near.recv(10)


def test_cut_resets_existing_and_new_connections(echo: Echo) -> None:
    near, _far = echo.connect()
    echo.network.separate(CLIENTS, 2, mode=Mode.CUT)
    with pytest.raises(ConnectionResetError):
        near.recv(10)
    with pytest.raises(ConnectionResetError):  # connect itself may fail with the reset
        socket.create_connection(("127.0.0.1", echo.port), timeout=5).recv(10)


def test_connection_waits_while_one_direction_is_blocked(echo: Echo) -> None:
    first, _ = echo.connect()
    first.close()
    echo.network.block(2, CLIENTS)
    near = socket.create_connection(("127.0.0.1", echo.port), timeout=5)
    near.sendall(b"ask")
    echo.listener.settimeout(SHORT)
    with pytest.raises(TimeoutError):
        echo.accept()
    echo.listener.settimeout(5)
    echo.network.heal()
    assert echo.accept().recv(10) == b"ask"


def test_delay_and_rate_limit_slow_one_direction(echo: Echo) -> None:
    near, far = echo.connect()
    echo.network.slow(CLIENTS, 2, delay_ms=SHORT * 2000)
    near.sendall(b"ask")
    assert _is_silent(far)
    assert far.recv(10) == b"ask"
    echo.network.slow(CLIENTS, 2, bytes_per_second=100)
    near.sendall(b"x" * 40)
    assert 0 < len(far.recv(100)) < 40


def test_half_open_connection_is_closed_at_the_node_only(echo: Echo) -> None:
    near, far = echo.connect()
    echo.network.half_open(2)
    with pytest.raises(ConnectionResetError):
        far.recv(10)
    near.sendall(b"ask")
    assert _is_silent(near)
    echo.network.heal()
    with pytest.raises(ConnectionResetError):
        near.recv(10)


def test_proxy_refuses_connections_while_its_target_is_closed(echo: Echo) -> None:
    near, far = echo.connect()
    echo.listener.close()
    far.close()
    assert near.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", echo.port), timeout=5)


PEER = "import socket,sys; s=socket.create_connection(('127.0.0.1',int(sys.argv[1]))); s.recv(9)"


def test_faults_apply_to_the_process_behind_a_connection(echo: Echo) -> None:
    """A fault between nodes 1 and 2 does not affect clients."""
    client, _ = echo.connect()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.readline();" + PEER, str(echo.port)],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    try:
        echo.network.process(1, child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        far = echo.accept()
        echo.network.block(2, 1)
        far.sendall(b"answer")
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(SHORT)
        client.sendall(os.urandom(4))
        echo.network.heal()
        assert child.wait(5) == 0
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
