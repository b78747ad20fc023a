"""When logins expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from riverrun.console.clusters import ClusterEntry, ClusterSettings
from riverrun.console.sessions import SCRIPT_IDLE_SECONDS_MAX, ConsoleSessions, UserAccess


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
