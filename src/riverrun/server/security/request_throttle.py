"""Applies quotas to requests, after their handlers: the one place where clients are slowed down.

A client above its quota is answered at once. The response says how long it must wait, and its
connection is not read meanwhile (KIP-219).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import AccessControl
from riverrun.server.security.client_quotas import ClientQuotas
from riverrun.wire.apis import ApiKey
from riverrun.wire.throttle_time import throttle_time_of, with_throttle_time

EXEMPT: Final = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DISCOVER_NODE,
    }
)
"""Logins, and the first request of other nodes. Fetches of followers count nothing either."""
OF_NODES: Final[Mapping[ApiKey, int]] = {
    ApiKey.WRITE_TXN_MARKERS: 0,
    ApiKey.ADD_PARTITIONS_TO_TXN: 4,
    ApiKey.VERIFY_REPLICA: 0,
    ApiKey.APPEND_AUDIT: 0,
}
"""Requests of other nodes, from a version on. Users with the right ClusterAction have no quota for
them, also on a listener that clients use."""


class RequestThrottle:
    """Slows down the clients of one router."""

    def __init__(
        self, quotas: ClientQuotas, access: AccessControl, mute: Callable[[int, float], None]
    ) -> None:
        """``mute`` stops reading from a connection for some seconds."""
        self.quotas = quotas
        self._access = access
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
        if key in EXEMPT or quotas.is_exempt(context) or self._is_of_node(key, context):
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

    def _is_of_node(self, key: ApiKey, context: RequestContext) -> bool:
        since = OF_NODES.get(key)
        if since is None or context.api_version < since:
            return False
        return self._access.allows_cluster(context, AclOperation.CLUSTER_ACTION)

    def _wait(self, context: RequestContext, wait_ms: int) -> None:
        if wait_ms > 0:
            self._mute(context.connection_id, wait_ms / 1000)
