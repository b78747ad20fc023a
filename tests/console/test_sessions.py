"""When logins expire, and which requests share one."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from riverrun.client.security import SaslLogin
from riverrun.console.api.session import SessionQuery
from riverrun.console.clusters import ClusterEntry, ClusterSettings
from riverrun.console.problems import ApiProblem, problem
from riverrun.console.routing import ApiEndpoint, ApiServer, ClusterRequest, EndpointTable
from riverrun.console.sessions import (
    LOGINS_WAITING_MAX,
    SCRIPT_IDLE_SECONDS_MAX,
    SESSION_IDLE_SECONDS_MAX,
    SESSIONS_PER_USER_MAX,
    ClusterLogin,
    ConsoleSessions,
    UserAccess,
)
from riverrun.security.mechanisms import SaslMechanism


def login_of(user: str, cluster: str = "main") -> ClusterLogin:
    login = SaslLogin(mechanism=SaslMechanism.PLAIN, user=user, password=f"{user}'s secret")
    return ClusterLogin(cluster=cluster, login=login, user=user, owner=f"user {user} of {cluster}")


def secure_entry(name: str) -> ClusterEntry:
    properties = {"security.protocol": "SASL_PLAINTEXT"}
    return ClusterEntry(ClusterSettings(name=name, bootstrap="127.0.0.1:1", properties=properties))


async def parts() -> AsyncIterator[bytes]:
    yield b"first"
    yield b"second"


def test_a_login_does_not_expire_during_a_download() -> None:
    async def run() -> None:
        now = 0.0
        entries = [secure_entry("main")]
        sessions = ConsoleSessions(entries, now=lambda: now)
        access = UserAccess(entries)
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
        entries = [secure_entry("main")]
        sessions = ConsoleSessions(entries)
        for name in ("bob", "ann"):
            for number in range(SESSIONS_PER_USER_MAX + 3 if name == "ann" else 1):
                access = UserAccess(entries, [login_of(name)])
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

    async def _open(
        self, entry: ClusterEntry, user: str, password: str, mechanism: str | None
    ) -> UserAccess:
        self.logins += 1
        await asyncio.sleep(0)
        if password == "wrong":
            raise problem("login_required", "The cluster refuses this user or password.")
        return UserAccess(self.entries, [login_of(user, entry.name)])


def script(password: str) -> Request:
    encoded = base64.b64encode(f"ann:{password}".encode())
    return Request({"type": "http", "headers": [(b"authorization", b"Basic " + encoded)]})


def test_requests_of_a_script_at_once_share_a_login() -> None:
    """A login that is replaced by another one would never be closed."""

    async def run() -> None:
        sessions = SlowSessions([secure_entry("main")])
        asked = [sessions.access_of(script("right"), None) for _ in range(10)]
        first, *others = await asyncio.gather(*asked)
        assert all(access is first for access in others)
        assert (sessions.logins, sessions.count) == (1, 1)
        for _ in range(2):
            refused = [sessions.access_of(script("wrong"), None) for _ in range(3)]
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


def test_a_login_opens_no_other_cluster() -> None:
    """The other cluster would get the password."""

    async def run() -> None:
        access = UserAccess([secure_entry("a"), secure_entry("b")], [login_of("ann", "a")])
        assert access.connected("a").pool is not None
        with pytest.raises(ApiProblem) as refused:
            access.connected("b")
        assert refused.value.code == "login_required" and "cluster b" in refused.value.message
        assert (access.clusters, access.user_in("b")) == (("a",), None)
        await access.close()

    asyncio.run(run())


def test_a_session_has_a_login_for_each_cluster() -> None:
    async def run() -> None:
        sessions = SlowSessions([secure_entry("a"), secure_entry("b")])
        first_id, access = await sessions.log_in("ann", "x", None, cluster="a")
        in_a = access.connected("a")
        second_id, access = await sessions.log_in(
            "bob", "x", None, cluster="b", session_id=first_id
        )
        assert access.connected("a") is in_a
        assert (access.user_in("a"), access.user_in("b")) == ("ann", "bob")
        assert sessions._find(first_id) is None and sessions._find(second_id) is access
        _, access = await sessions.log_in("eve", "x", None, cluster="a", session_id=second_id)
        assert access.connected("a") is not in_a, "it is logged in as ann"
        assert (access.user_in("a"), access.user_in("b")) == ("eve", "bob")
        assert (access.owner, sessions.count) == ("user eve of a", 1)
        await sessions.close()

    asyncio.run(run())


def test_a_script_logs_in_to_the_cluster_of_the_query() -> None:
    async def show(request: ClusterRequest) -> list[str]:
        assert request.access_if_any is not None
        return list(request.access_if_any.clusters)

    async def run() -> None:
        endpoint = ApiEndpoint(
            "GET",
            "/session",
            show,
            "A test",
            query=SessionQuery,
            needs_cluster=False,
            needs_login=False,
        )
        sessions = SlowSessions([secure_entry("a"), secure_entry("b")])
        server = ApiServer(EndpointTable([endpoint]), sessions, is_read_only=False)
        for query, found in ((b"cluster=b", b'["b"]'), (b"cluster=a", b'["a"]'), (b"", b'["a"]')):
            scope = dict(script("right").scope)
            scope |= {"method": "GET", "path": "/api/v1/session", "query_string": query}
            response = await server.respond(Request(scope))
            assert (response.status_code, response.body) == (200, found)

    asyncio.run(run())


def test_a_script_logs_in_to_the_cluster_that_it_asks_for() -> None:
    async def run() -> None:
        sessions = SlowSessions([secure_entry("a"), secure_entry("b")])
        for cluster, found in (("b", "b"), ("a", "a"), (None, "a")):
            access = await sessions.access_of(script("right"), cluster)
            assert access is not None and access.clusters == (found,)
        with pytest.raises(ApiProblem, match="no cluster c"):
            await sessions.access_of(script("right"), "c")
        assert (sessions.logins, sessions.count) == (2, 2)

    asyncio.run(run())
