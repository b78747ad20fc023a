"""Responses that are sent as they are made: live views and downloads. Their number is limited."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from riverrun.console.problems import ApiProblem, problem
from riverrun.console.routing import problem_response
from riverrun.console.sessions import UserAccess

STREAMS_MAX: Final = 20
"""Of one console at once."""
STREAMS_PER_USER_MAX: Final = 5
"""So that one user does not take all of them. A browser opens six connections to a host at most."""
SEND_SECONDS_MAX: Final = 60.0
"""For one part. A reader that does not read must not keep others out."""


class OpenStreams:
    """Counts the open streams of a console, and those of each owner."""

    def __init__(self) -> None:
        self._by_owner: Counter[str] = Counter()
        self.count = 0

    def take(self, owner: str | None) -> None:
        """None: everybody, who cannot be told apart without a login. Raises ``ApiProblem``."""
        if owner is not None and self._by_owner[owner] >= STREAMS_PER_USER_MAX:
            raise problem(
                "too_many",
                f"{STREAMS_PER_USER_MAX} live views and downloads of this user are open.",
                "Close some of them, or wait until a download ends.",
            )
        if self.count >= STREAMS_MAX:
            raise problem(
                "too_many",
                f"{STREAMS_MAX} live views and downloads are open in this console.",
                "Close some of them, try again later, or use the console of another node.",
            )
        self.count += 1
        if owner is not None:
            self._by_owner[owner] += 1

    def release(self, owner: str | None) -> None:
        self.count -= 1
        if owner is not None:
            self._by_owner[owner] -= 1
            self._by_owner += Counter()  # drops owners without streams


class LimitedStream(StreamingResponse):
    """Counts from the moment it is sent, so that requests at once cannot pass the limit."""

    def __init__(
        self,
        streams: OpenStreams,
        access: UserAccess,
        parts: AsyncIterator[bytes],
        **more: Any,
    ) -> None:
        super().__init__(access.streamed(parts), **more)
        self._streams = streams
        self._owner = access.owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._streams.take(self._owner)
        except ApiProblem as refusal:
            await problem_response(refusal)(scope, receive, send)
            return

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except (TimeoutError, ClientDisconnect):
            return  # the server closes the connection, because the response has no end
        finally:
            self._streams.release(self._owner)
