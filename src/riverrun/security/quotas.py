"""Quotas of clients: which limit holds for a client, and how long a client above it must wait.

The arithmetic is Kafka's (KIP-13, 55, 124, 599, 612). A rate is measured over some whole windows
and the current one. Changes of the cluster take permits from a bucket instead, because one request
may need many of them. Time is an argument, in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

ANY_NAME: Final = None
"""The name of a default entity: it stands for every name without a quota of its own."""
NO_NAME: Final = ""
"""The entity does not say anything about this type. Real names are never empty."""


class QuotaKind(StrEnum):
    """What a quota limits, by its key in requests and records."""

    PRODUCER = "producer_byte_rate"
    CONSUMER = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


CLIENT_KINDS: Final = (
    QuotaKind.PRODUCER,
    QuotaKind.CONSUMER,
    QuotaKind.REQUEST,
    QuotaKind.MUTATION,
)
"""Quotas of users and client ids."""
IP_KINDS: Final = (QuotaKind.CONNECTION,)
BYTE_KINDS: Final = (QuotaKind.PRODUCER, QuotaKind.CONSUMER)
WHOLE_KINDS: Final = (*BYTE_KINDS, QuotaKind.CONNECTION)
"""Their values are whole numbers."""
EPSILON: Final = 1e-6
"""Values are transferred as doubles; a whole number may be this far off."""

Name = str | None
Entity = Mapping[str, Name]
"""Names by type: user, client-id or both of them, or ip."""


class ClientQuota(NamedTuple):
    """One stored quota."""

    entity: Entity
    kind: QuotaKind
    limit: float


class QuotaMatch(NamedTuple):
    """The limit of a client, and whose use counts: all clients with these names share it."""

    limit: float
    user: str
    client_id: str


def key_refusal(entity: Entity, key: str, value: float) -> str | None:
    """Why a quota cannot be set; None if it can. The entity is valid."""
    kinds = IP_KINDS if IP in entity else CLIENT_KINDS
    if key not in kinds:
        return f"Invalid configuration key {key}"
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    if key in WHOLE_KINDS and abs(int(min(value + EPSILON, 2.0**63)) - value) > EPSILON:
        return f"{key} cannot be a fractional value."
    return None


def entity_refusal(entity: Entity) -> str | None:
    """Why an entity is not valid; None if it is."""
    if not entity:
        return "Invalid empty client quota entity"
    for kind, name in entity.items():
        if kind not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if IP in entity and len(entity) > 1:
        return (
            "Invalid quota entity combination, IP entity should not be combined with User or "
            "ClientId"
        )
    return None


class QuotaTable:
    """All quotas, searched by client. The most specific entity wins."""

    def __init__(self, quotas: Iterable[ClientQuota]) -> None:
        self._limits: dict[QuotaKind, dict[tuple[Name, Name], float]] = {}
        self._connection_rates: dict[Name, float] = {}
        for entity, kind, limit in quotas:
            if kind is QuotaKind.CONNECTION:
                self._connection_rates[entity[IP]] = limit
            else:
                names = entity.get(USER, NO_NAME), entity.get(CLIENT_ID, NO_NAME)
                self._limits.setdefault(kind, {})[names] = limit

    @property
    def has_clients(self) -> bool:
        """Whether any user or client id has a quota."""
        return bool(self._limits)

    @property
    def has_addresses(self) -> bool:
        return bool(self._connection_rates)

    def match(self, kind: QuotaKind, user: str, client_id: str) -> QuotaMatch | None:
        """The quota of a client; None if it has no limit."""
        limits = self._limits.get(kind)
        if limits is None:
            return None
        for names in _by_precedence(user, client_id):
            limit = limits.get(names)
            if limit is not None:
                return QuotaMatch(
                    limit,
                    NO_NAME if names[0] == NO_NAME else user,
                    NO_NAME if names[1] == NO_NAME else client_id,
                )
        return None

    def connection_rate(self, address: str) -> float | None:
        """New connections for each second that an address may open; None: no limit."""
        own = self._connection_rates.get(address)
        return self._connection_rates.get(ANY_NAME) if own is None else own


def _by_precedence(user: str, client_id: str) -> tuple[tuple[Name, Name], ...]:
    """The entities whose quota may hold for a client, the most specific one first."""
    return (
        (user, client_id),
        (user, ANY_NAME),
        (user, NO_NAME),
        (ANY_NAME, client_id),
        (ANY_NAME, ANY_NAME),
        (ANY_NAME, NO_NAME),
        (NO_NAME, client_id),
        (NO_NAME, ANY_NAME),
    )


class SampledRate:
    """A rate over the last windows. Each window is one sample; the oldest ones are dropped."""

    __slots__ = ("_samples", "_samples_max", "_window")

    def __init__(self, samples_max: int, window: float) -> None:
        """``samples_max`` windows of ``window`` seconds, of which the last one is not complete."""
        assert samples_max >= 1 and window > 0, f"{samples_max} windows of {window} s"
        self._samples_max = samples_max
        self._window = window
        self._samples: deque[list[float]] = deque()
        """First event, amount and last event of each."""

    def record(self, amount: float, now: float) -> None:
        samples = self._samples
        if samples and now - samples[-1][0] < self._window:
            samples[-1][1] += amount
            samples[-1][2] = now
        else:
            samples.append([now, amount, now])
        self._drop_old(now)

    def measure(self, now: float) -> float:
        """The amount for each second."""
        self._drop_old(now)
        return sum(amount for _, amount, _ in self._samples) / self._seconds(now)

    def wait(self, limit: float, now: float) -> float:
        """The seconds after which the rate is at the limit again; 0 if it is not above it."""
        rate = self.measure(now)
        return 0.0 if rate <= limit else (rate - limit) / limit * self._seconds(now)

    def _seconds(self, now: float) -> float:
        """The time that the samples cover. At the beginning it counts as all whole windows, or the
        first request would be far above every limit."""
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        whole = self._samples_max - 1
        missing = whole - int(elapsed / self._window)
        if missing > 0:
            elapsed += missing * self._window
        return elapsed or self._window

    def _drop_old(self, now: float) -> None:
        """Drop samples whose last event is too old. One that began earlier is kept whole, so the
        time that the samples cover is not longer than it seems."""
        samples, age = self._samples, self._samples_max * self._window
        while samples and now - samples[0][2] >= age:
            samples.popleft()


class PermitBucket:
    """Permits for changes. Unused ones are saved up to ``burst_seconds``, and the last change may
    take more than there are, so a large change is possible once in a while."""

    __slots__ = ("_at", "_burst_seconds", "_permits")

    def __init__(self, burst_seconds: float) -> None:
        self._burst_seconds = burst_seconds
        self._permits: float | None = None
        self._at = 0.0

    def left(self, limit: float, now: float) -> float:
        """The permits now; ``limit`` of them are added each second. Below 0 after too many."""
        burst = limit * self._burst_seconds
        before = burst if self._permits is None else self._permits
        self._permits = min(burst, before + limit * (now - self._at))
        self._at = now
        return self._permits

    def take(self, count: float, limit: float, now: float) -> None:
        self._permits = self.left(limit, now) - count

    def wait(self, limit: float, now: float) -> float:
        """The seconds until there are permits again; 0 if there are some."""
        return max(-self.left(limit, now), 0.0) / limit
