"""Sockets passed by a service manager: which process they are for, and which listener."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from riverrun.server.settings import Address
from riverrun.server.socket_activation import adopt_sockets, passed_descriptors


@pytest.fixture
def passed() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def address(made: socket.socket, host: str = "127.0.0.1", name: str = "PLAINTEXT") -> Address:
    return Address(name=name, host=host, port=made.getsockname()[1])


def adopt(made: socket.socket, *addresses: Address, name: str = "") -> dict[Address, int]:
    """The addresses that a duplicate of the socket was matched with, and their ports."""
    descriptor = os.dup(made.fileno())
    adopted = adopt_sockets({descriptor: name}, addresses)
    found = {address: taken.getsockname()[1] for address, taken in adopted.items()}
    for taken in adopted.values():
        assert not taken.get_inheritable()
        taken.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, {3: "", 4: ""}),
        (
            {"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "plaintext:other"},
            {3: "plaintext", 4: "other"},
        ),
        ({"LISTEN_PID": "8", "LISTEN_FDS": "2"}, {}),
        ({"LISTEN_FDS": "2"}, {}),
        ({"LISTEN_PID": "7"}, {}),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "many"}, {}),
        ({}, {}),
    ],
)
def test_descriptors_belong_to_the_process_that_is_named(
    environment: dict[str, str], expected: dict[int, str]
) -> None:
    assert passed_descriptors(environment, 7) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "kafka.example.org"])
def test_socket_is_matched_by_its_bound_address(passed: socket.socket, host: str) -> None:
    wanted = address(passed, host)
    other = Address(name="OTHER", host=host, port=1)
    assert list(adopt(passed, other, wanted)) == [wanted]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_wildcard_listener_takes_a_wildcard_socket_only(passed: socket.socket, host: str) -> None:
    assert adopt(passed, address(passed, host)) == {}
    with contextlib.closing(socket.create_server(("0.0.0.0", 0))) as wildcard:
        wanted = address(wildcard, host)
        assert list(adopt(wildcard, wanted)) == [wanted]


def test_name_wins_over_the_bound_address(passed: socket.socket) -> None:
    named = Address(name="OUTSIDE", host="10.0.0.1", port=9092)
    assert list(adopt(passed, address(passed), named, name="outside")) == [named]


def test_socket_that_does_not_listen_is_closed() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        assert adopt(made, address(made)) == {}


def test_each_listener_takes_one_socket(passed: socket.socket) -> None:
    first, second = os.dup(passed.fileno()), os.dup(passed.fileno())
    adopted = adopt_sockets({first: "", second: ""}, [address(passed)])
    assert [taken.fileno() for taken in adopted.values()] == [first]
    adopted[address(passed)].close()
