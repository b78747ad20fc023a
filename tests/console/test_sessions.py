"""When logins expire, and which requests share one."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator

from starlette.requests import Request

from riverrun.console.clusters import ClusterEntry, ClusterSettings
from riverrun.console.problems import ApiProblem, problem
from riverrun.console.sessions import (
    LOGINS_WAITING_MAX,
    SCRIPT_IDLE_SECONDS_MAX,
    SESSION_IDLE_SECONDS_MAX,
    SESSIONS_PER_USER_MAX,
    ConsoleSessions,
    UserAccess,
)


async def parts() -> AsyncIterator[bytes]:
    yield b"first"
    yield b"second"


def test_a_login_does_not_expire_during_a_download() -> None:
    async def run() -> None:
        now = 0.0
        properties = {"security.protocol": "SASL_PLAINTEXT"}
        settings = ClusterSettings(name="main", bootstrap="127.0.0.1:1", properties=properties)
        entries = [ClusterEntry(settings)]
        sessions = ConsoleSessions(entries, now=lambda: now)
        access = UserAccess(entries, None, "ann")
        await sessions._keep("id", access, SCRIPT_IDLE_SECONDS_MAX)
        download = access.streamed(parts())
        assert await anext(download) == b"first"
        now += SCRIPT_IDLE_SECONDS_MAX + 1
        await sessions.drop_expired()
        assert sessions.count == 1
        assert [part async for part in download] == [b"second"]
        await sessions.drop_expired()
        assert sessions.count == 0

    asyncio.run(run())


def test_many_logins_of_one_user_end_those_of_no_other() -> None:
    async def run() -> None:
        properties = {"security.protocol": "SASL_PLAINTEXT"}
        settings = ClusterSettings(name="main", bootstrap="127.0.0.1:1", properties=properties)
        entries = [ClusterEntry(settings)]
        sessions = ConsoleSessions(entries)
        for name in ("bob", "ann"):
            for number in range(SESSIONS_PER_USER_MAX + 3 if name == "ann" else 1):
                access = UserAccess(entries, None, name, owner=f"user {name}")
                await sessions._keep(f"{name} {number}", access, SESSION_IDLE_SECONDS_MAX)
        assert sessions.count == SESSIONS_PER_USER_MAX + 1
        assert sessions._find("bob 0") is not None
        assert sessions._find("ann 2") is None, "the ones used least are closed"
        assert sessions._find("ann 3") is not None

    asyncio.run(run())


class SlowSessions(ConsoleSessions):
    """Logins take a turn of the event loop, and are counted."""

    def __init__(self, entries: list[ClusterEntry]) -> None:
        super().__init__(entries)
        self.logins = 0

    async def _open(self, user: str, password: str, mechanism: str | None) -> UserAccess:
        self.logins += 1
        await asyncio.sleep(0)
        if password == "wrong":
            raise problem("login_required", "The cluster refuses this user or password.")
        return UserAccess(self.entries, None, user, owner=f"user {user}")


def script(password: str) -> Request:
    encoded = base64.b64encode(f"ann:{password}".encode())
    return Request({"type": "http", "headers": [(b"authorization", b"Basic " + encoded)]})


def test_requests_of_a_script_at_once_share_a_login() -> None:
    """A login that is replaced by another one would never be closed."""

    async def run() -> None:
        properties = {"security.protocol": "SASL_PLAINTEXT"}
        settings = ClusterSettings(name="main", bootstrap="127.0.0.1:1", properties=properties)
        sessions = SlowSessions([ClusterEntry(settings)])
        asked = [sessions.access_of(script("right")) for _ in range(10)]
        first, *others = await asyncio.gather(*asked)
        assert all(access is first for access in others)
        assert (sessions.logins, sessions.count) == (1, 1)
        for _ in range(2):
            refused = [sessions.access_of(script("wrong")) for _ in range(3)]
            results = await asyncio.gather(*refused, return_exceptions=True)
            assert all(isinstance(result, ApiProblem) for result in results)
        assert (sessions.logins, sessions.count) == (3, 1)

    asyncio.run(run())


def test_few_logins_wait_for_a_cluster_that_does_not_answer() -> None:
    async def run() -> None:
        properties = {"security.protocol": "SASL_PLAINTEXT"}
        with socket.create_server(("127.0.0.1", 0)) as silent:
            bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
            settings = ClusterSettings(name="main", bootstrap=bootstrap, properties=properties)
            sessions = ConsoleSessions([ClusterEntry(settings)])
            logins = [
                asyncio.create_task(sessions.log_in(f"user-{number}", "x", None))
                for number in range(LOGINS_WAITING_MAX + 5)
            ]
            await asyncio.sleep(0)
            refused = [login for login in logins if login.done()]
            for login in logins:
                login.cancel()
            await asyncio.gather(*logins, return_exceptions=True)
            assert [login.exception() is not None for login in refused] == [True] * 5

    asyncio.run(run())
