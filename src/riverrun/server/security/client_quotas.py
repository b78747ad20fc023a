"""The use of quotas on this node: who used how much, and how long it must wait.

Each node enforces the quotas by itself. All connections of the clients that a quota is for share
one use. Without quotas of clients ``is_active`` is false, and requests cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from riverrun.cluster.security.client_quotas import quotas_of
from riverrun.metadata.delta import Delta
from riverrun.metadata.entries import CLIENT_QUOTA
from riverrun.metadata.image import Entries, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.settings import INT_MAX
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.security.principal import NODE_KIND
from riverrun.security.quotas import (
    PermitBucket,
    QuotaKind,
    QuotaMatch,
    QuotaTable,
    SampledRate,
)
from riverrun.server.security.quota_settings import QuotaSettings

if TYPE_CHECKING:
    from riverrun.server.dispatch.context import RequestContext
    from riverrun.server.security.node_security import NodeSecurity
    from riverrun.server.settings import NodeSettings

USES_MAX: Final = 10_000
"""Clients choose their ids, so the number of remembered ones is limited."""
REPORTED_USES_MAX: Final = 100
PERCENT: Final = 100.0


class QuotaUse(Struct):
    """What the clients of one quota have used."""

    kind: QuotaKind
    user: str
    client_id: str
    limit: float
    rate: SampledRate
    bucket: PermitBucket
    used_at: float = 0.0


class MutationPermits:
    """The permits of one request that changes topics."""

    def __init__(
        self, use: QuotaUse | None, count: Callable[[int], None], now: float, *, is_strict: bool
    ) -> None:
        """``is_strict``: refuse changes above the quota. Otherwise they are made, and the client
        must wait afterwards. ``count`` gets each wait in milliseconds."""
        self._use = use
        self._count = count
        self._now = now
        self._is_strict = is_strict
        self.throttle_ms = 0

    def take(self, partitions: int) -> None:
        """Raises ``KafkaError`` if partitions may not be created or deleted now."""
        use = self._use
        if use is None:
            return
        wait_s = use.bucket.wait(use.limit, self._now)
        if self._is_strict and wait_s > 0:
            self.throttle_ms = max(_milliseconds(wait_s), 1)
            self._count(self.throttle_ms)
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
            )
        use.bucket.take(partitions, use.limit, self._now)
        use.rate.record(partitions, self._now)
        if not self._is_strict:
            self.throttle_ms = _milliseconds(use.bucket.wait(use.limit, self._now))
            self._count(self.throttle_ms)


class ClientQuotas:
    """Quotas of users and client ids on one node."""

    def __init__(
        self,
        settings: QuotaSettings,
        *,
        clock: Clock,
        metrics: Metrics,
        exempt_listener: str | None = None,
    ) -> None:
        """Clients of ``exempt_listener`` have no quotas: it is for other brokers only."""
        self.is_active = False
        self.table = QuotaTable(())
        self._settings = settings
        self._clock = clock
        self.exempt_listener = exempt_listener
        self._entries: Entries | None = None
        self._uses: dict[tuple[QuotaKind, str, str], QuotaUse] = {}
        self._found: dict[tuple[QuotaKind, str, str], QuotaUse | None] = {}
        self._throttled = {
            kind: (
                metrics.counter(
                    "riverrun_throttled_requests_total",
                    "Requests of clients above their quota.",
                    quota=kind.value,
                ),
                metrics.counter(
                    "riverrun_throttled_milliseconds_total",
                    "How long clients above their quota were told to wait.",
                    quota=kind.value,
                ),
            )
            for kind in QuotaKind
        }
        metrics.gauges(
            "riverrun_quota_rate",
            "Use of quotas for each second, of the clients nearest to their limit.",
            lambda: ((_labels(use), rate) for use, rate in self.uses()),
        )
        metrics.gauges(
            "riverrun_quota_limit",
            "Limits of the clients in riverrun_quota_rate.",
            lambda: ((_labels(use), use.limit) for use, _ in self.uses()),
        )

    def published(self, _: Delta, image: Image) -> None:
        """A subscriber of metadata images, which share unchanged quotas."""
        entries = image.entries_of(CLIENT_QUOTA)
        if entries is self._entries:
            return
        self._entries = entries
        self.table = QuotaTable(quotas_of(image))
        self._found.clear()
        if not self.table.has_clients:
            self._uses.clear()
        self.is_active = self.table.has_clients

    # What clients use. Each returns the milliseconds that the client must wait.

    def produced(self, context: RequestContext, size: int) -> int:
        """A Produce request of this size."""
        return self._record(QuotaKind.PRODUCER, context, size)

    def worked(self, context: RequestContext, seconds: float) -> int:
        """A request that used the event loop for this time: one loop is 100 percent."""
        wait_ms = self._record(QuotaKind.REQUEST, context, seconds * PERCENT)
        return min(wait_ms, self._settings.window_seconds * 1000)

    def fetched(self, context: RequestContext, size: int, seconds: float) -> int:
        """A Fetch response of this size. If the client must wait, the response has no records, so
        the size does not count."""
        request_ms = self.worked(context, seconds)
        use = self._use(QuotaKind.CONSUMER, context)
        if use is None:
            return request_ms
        now = self._clock.monotonic()
        use.used_at = now
        use.rate.record(size, now)
        wait_ms = _milliseconds(use.rate.wait(use.limit, now))
        if wait_ms or request_ms:
            use.rate.record(-size, now)
        self._count(QuotaKind.CONSUMER, wait_ms)
        return max(wait_ms, request_ms)

    def fetch_bytes_max(self, context: RequestContext) -> int:
        """The largest response to a consumer: a larger one would always be above the quota."""
        use = self._use(QuotaKind.CONSUMER, context)
        if use is None:
            return INT_MAX
        windows = max(self._settings.windows - 1, 1)
        return int(min(use.limit * windows * self._settings.window_seconds, INT_MAX))

    def mutations(self, context: RequestContext, *, is_strict: bool) -> MutationPermits:
        """The permits of a request that creates or deletes partitions."""
        use = self._use(QuotaKind.MUTATION, context) if self.is_active else None
        now = self._clock.monotonic()
        if use is not None:
            use.used_at = now
        count = partial(self._count, QuotaKind.MUTATION)
        return MutationPermits(use, count, now, is_strict=is_strict)

    def connection_rate(self, address: str) -> float | None:
        """The quota of an address; None: no limit."""
        return self.table.connection_rate(address)

    def is_exempt(self, context: RequestContext) -> bool:
        """Whether a request comes from another node."""
        return context.principal.kind == NODE_KIND or context.listener == self.exempt_listener

    def uses(self) -> list[tuple[QuotaUse, float]]:
        """The uses in the last windows and their rates, those nearest to their limit first."""
        now = self._clock.monotonic()
        recent = [
            (use, use.rate.measure(now))
            for use in self._uses.values()
            if now - use.used_at < self._memory_seconds
        ]
        recent.sort(key=lambda pair: -pair[1] / pair[0].limit)
        return recent[:REPORTED_USES_MAX]

    def _record(self, kind: QuotaKind, context: RequestContext, amount: float) -> int:
        use = self._use(kind, context)
        if use is None:
            return 0
        now = self._clock.monotonic()
        use.used_at = now
        use.rate.record(amount, now)
        wait_ms = _milliseconds(use.rate.wait(use.limit, now))
        self._count(kind, wait_ms)
        return wait_ms

    def _use(self, kind: QuotaKind, context: RequestContext) -> QuotaUse | None:
        user, client_id = context.principal.name, context.client_id or ""
        key = kind, user, client_id
        try:
            return self._found[key]
        except KeyError:
            pass
        match = self.table.match(kind, user, client_id)
        use = None if match is None else self._use_of(kind, match)
        if len(self._found) >= USES_MAX:
            self._found.clear()
        self._found[key] = use
        return use

    def _use_of(self, kind: QuotaKind, match: QuotaMatch) -> QuotaUse:
        key = kind, match.user, match.client_id
        use = self._uses.get(key)
        if use is None:
            self._make_room()
            settings = self._settings
            use = self._uses[key] = QuotaUse(
                *key,
                match.limit,
                SampledRate(settings.windows, settings.window_seconds),
                PermitBucket(settings.controller_windows * settings.controller_window_seconds),
                self._clock.monotonic(),
            )
        use.limit = match.limit
        return use

    def _make_room(self) -> None:
        """Forget uses that are older than all windows, or the oldest ones if all are recent."""
        if len(self._uses) < USES_MAX:
            return
        now = self._clock.monotonic()
        kept = [use for use in self._uses.values() if now - use.used_at < self._memory_seconds]
        kept = sorted(kept, key=lambda use: use.used_at)[-USES_MAX // 2 :]
        self._uses = {(use.kind, use.user, use.client_id): use for use in kept}
        self._found.clear()

    @property
    def _memory_seconds(self) -> float:
        settings = self._settings
        return max(
            settings.windows * settings.window_seconds,
            settings.controller_windows * settings.controller_window_seconds,
        )

    def _count(self, kind: QuotaKind, wait_ms: int) -> None:
        if wait_ms:
            requests, milliseconds = self._throttled[kind]
            requests.value += 1
            milliseconds.value += wait_ms


def _labels(use: QuotaUse) -> dict[str, str]:
    return {"quota": use.kind.value, "user": use.user, "client": use.client_id}


def _milliseconds(seconds: float) -> int:
    """Rounded as Kafka rounds."""
    return int(seconds * 1000 + 0.5)


def exempt_listener_of(inter_broker_listener: str, client_listeners: Iterable[str]) -> str | None:
    """The listener between brokers, if clients have another one."""
    others = [name for name in client_listeners if name != inter_broker_listener]
    return inter_broker_listener if others else None


def build_quotas(
    settings: NodeSettings, security: NodeSecurity, clock: Clock, metrics: Metrics
) -> ClientQuotas:
    names = [address.name for address in settings.client_addresses()]
    return ClientQuotas(
        settings.quota,
        clock=clock,
        metrics=metrics,
        exempt_listener=exempt_listener_of(security.inter_broker_listener, names),
    )
