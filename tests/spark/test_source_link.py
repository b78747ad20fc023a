"""Links live as long as their process, up to a maximum number."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_riverrun.cluster.link import FIRST_CONTACT_S_MAX, BrokerLink, BrokerLinks
from pyspark_riverrun.options import ClusterOptions, read_options
from riverrun.client.pool import ClusterUnreachable
from tests.processes import serve, until


def options(client_id: str, servers: str = "h:1") -> ClusterOptions:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "a", "kafka.client.id": client_id}
    return read_options(given, is_streaming=True).cluster


def threads() -> int:
    return sum(thread.name == "riverrun" for thread in threading.enumerate())


def test_links_above_the_limit_are_closed_with_their_threads() -> None:
    before = threads()
    links = BrokerLinks(2)
    first = links.to(options("0"))
    assert links.to(options("0")) is first
    for number in range(1, 8):
        links.to(options(str(number)))
    until(lambda: threads() == before + 2, seconds=10, what="threads of closed links end")
    assert links.to(options("7")) is links.to(options("7"))
    with pytest.raises(ConnectionError, match="the link was closed"):
        first.run(asyncio.sleep(0))
    first.call_soon(lambda: None)
    for number in (6, 7):
        links.to(options(str(number))).close()
    until(lambda: threads() == before, seconds=10, what="all threads end")


def test_pending_call_fails_when_the_link_is_closed() -> None:
    link = BrokerLink(options("x"))

    async def close_and_wait() -> None:
        link.close()
        await asyncio.Event().wait()

    with pytest.raises(ConnectionError, match="the link was closed"):
        link.run(close_and_wait())


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_addresses_that_never_answered_are_reported_within_seconds(
    nowhere: str, silent: str
) -> None:
    link = BrokerLink(options("x", f"{nowhere},{silent},nowhere.invalid:9092"))
    with pytest.raises(ClusterUnreachable) as caught:
        link.reach()
    text = str(caught.value)
    assert text.startswith(
        f"no node answers at {nowhere} (connection refused), {silent} (no answer "
    )
    assert "nowhere.invalid:9092 (" in text
    assert text.endswith("Correct kafka.bootstrap.servers, or start the cluster")
    assert FIRST_CONTACT_S_MAX < 10
    link.close()


def test_one_address_that_answers_is_enough(silent: str, tmp_path: Path) -> None:
    with serve(tmp_path) as node:
        link = BrokerLink(options("x", f"{silent},{node.bootstrap}"))
        link.reach()
        node.kill()
        link.reach()  # later requests have their own, longer limits
        link.close()


class FakeConnection:
    is_closed = False
    is_idle = True
    is_small = False

    def shrink(self) -> None:
        self.is_small = True

    def abort(self) -> None:
        self.is_closed = True


def test_idle_connections_release_their_memory() -> None:
    link, connection = BrokerLink(options("x")), FakeConnection()
    link.release(("h", 1), connection)  # type: ignore[arg-type]
    assert connection.is_small
    link.close()
    until(lambda: connection.is_closed, seconds=10, what="the connection is closed")
