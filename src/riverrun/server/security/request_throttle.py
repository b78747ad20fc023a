"""Applies quotas to requests, after their handlers: the one place where clients are slowed down.

A client above its quota is answered at once. The response says how long it must wait, and its
connection is not read meanwhile (KIP-219).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.client_quotas import ClientQuotas
from riverrun.wire.apis import ApiKey
from riverrun.wire.throttle_time import throttle_time_of, with_throttle_time

EXEMPT: Final = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.DISCOVER_NODE,
    }
)
"""Logins, and requests of other nodes. Fetches of followers count nothing either."""


class RequestThrottle:
    """Slows down the clients of one router."""

    def __init__(self, quotas: ClientQuotas, mute: Callable[[int, float], None]) -> None:
        """``mute`` stops reading from a connection for some seconds."""
        self.quotas = quotas
        self._mute = mute

    def unanswered(self, context: RequestContext, size: int) -> None:
        """A Produce request without a response. It waits for its bytes, not for its time."""
        if not self.quotas.is_exempt(context):
            self._wait(context, self.quotas.produced(context, size))

    def answered(
        self, key: ApiKey, context: RequestContext, body: Any, *, size: int, seconds: float
    ) -> Any:
        """The response of a request with ``size`` bytes that took ``seconds``.

        A response may have a time already: fetches count what they send themselves, and the
        controller counts changes of topics.
        """
        quotas, version = self.quotas, context.api_version
        if key in EXEMPT or quotas.is_exempt(context):
            return body
        own_ms = wait_ms = throttle_time_of(key, version, body)
        if key is ApiKey.PRODUCE:
            wait_ms = max(wait_ms, quotas.produced(context, size))
        if key is not ApiKey.FETCH:
            wait_ms = max(wait_ms, quotas.worked(context, seconds))
        self._wait(context, wait_ms)
        if wait_ms == own_ms:
            return body
        return with_throttle_time(key, version, body, wait_ms)

    def _wait(self, context: RequestContext, wait_ms: int) -> None:
        if wait_ms > 0:
            self._mute(context.connection_id, wait_ms / 1000)
