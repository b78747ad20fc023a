"""How many live views and downloads may be open, in all and for one user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from riverrun.client.security import SaslLogin
from riverrun.console import open_streams
from riverrun.console.clusters import ClusterEntry, ClusterSettings
from riverrun.console.open_streams import (
    STREAMS_MAX,
    STREAMS_PER_USER_MAX,
    LimitedStream,
    OpenStreams,
)
from riverrun.console.problems import ApiProblem
from riverrun.console.sessions import ClusterLogin, UserAccess
from riverrun.security.mechanisms import SaslMechanism

SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}
LOGIN = ClusterLogin(
    cluster="main",
    login=SaslLogin(mechanism=SaslMechanism.PLAIN, user="ann", password="x"),
    user="ann",
    owner="ann",
)


def entry() -> ClusterEntry:
    return ClusterEntry(ClusterSettings(name="main", bootstrap="127.0.0.1:1"))


def test_one_user_leaves_streams_to_others() -> None:
    streams = OpenStreams()
    for _ in range(STREAMS_PER_USER_MAX):
        streams.take("ann")
    with pytest.raises(ApiProblem) as refused:
        streams.take("ann")
    assert (refused.value.status, refused.value.code) == (429, "too_many")
    assert "of this user" in refused.value.message and refused.value.remedy
    streams.take("bob")
    streams.release("ann")
    streams.take("ann")


def test_all_users_together_have_a_limit() -> None:
    streams = OpenStreams()
    for number in range(STREAMS_MAX):
        streams.take(f"user {number}")
    with pytest.raises(ApiProblem) as refused:
        streams.take("another")
    assert refused.value.status == 429
    for number in range(STREAMS_MAX):
        streams.release(f"user {number}")
    streams.take("another")


def test_a_console_without_logins_has_the_limit_of_all_alone() -> None:
    streams = OpenStreams()
    for _ in range(STREAMS_MAX):
        streams.take(None)
    with pytest.raises(ApiProblem):
        streams.take(None)


def test_a_reader_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "SEND_SECONDS_MAX", 0.01)

    async def run() -> None:
        streams = OpenStreams()
        access = UserAccess([entry()], [LOGIN])

        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"part"

        async def wait(_: Any = None) -> Any:
            await asyncio.Event().wait()

        response = LimitedStream(streams, access, parts(), media_type="text/plain")
        async with asyncio.timeout(30):
            await response(SCOPE, wait, wait)
        assert (streams.count, access.is_streaming) == (0, False)

    asyncio.run(run())


def test_requests_at_once_do_not_pass_the_limit() -> None:
    async def run() -> None:
        streams = OpenStreams()
        access = UserAccess([entry()], [LOGIN])
        ended, begun = asyncio.Event(), asyncio.Semaphore(0)
        sent: list[list[Any]] = []

        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            await ended.wait()

        async def call() -> None:
            messages: list[Any] = []
            sent.append(messages)

            async def send(message: Any) -> None:
                messages.append(message)
                if message["type"] == "http.response.body" and len(messages) == 2:
                    begun.release()

            async def receive() -> Any:
                await asyncio.Event().wait()

            response = LimitedStream(streams, access, parts(), media_type="text/plain")
            await response(SCOPE, receive, send)

        calls = [asyncio.create_task(call()) for _ in range(STREAMS_PER_USER_MAX + 3)]
        async with asyncio.timeout(30):
            for _ in calls:
                await begun.acquire()
            statuses = sorted(messages[0]["status"] for messages in sent)
            assert statuses == [200] * STREAMS_PER_USER_MAX + [429] * 3
            refused = next(messages for messages in sent if messages[0]["status"] == 429)
            body = msgspec.json.decode(refused[1]["body"])
            assert body["error"]["code"] == "too_many" and body["error"]["remedy"]
            assert access.is_streaming
            calls[0].cancel()
            ended.set()
            await asyncio.gather(*calls, return_exceptions=True)
        assert not access.is_streaming
        assert streams.count == 0

    asyncio.run(run())
