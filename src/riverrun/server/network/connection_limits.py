"""Limits of connections: how many are open, and how fast new ones come (KIP-402, KIP-612).

A connection above a number is closed at once. One that comes too fast is accepted, and its first
request waits for its turn; if the turn is too far away, it is closed. So are connections of an
address above its quota ``connection_creation_rate``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from riverrun.model.settings import INT_MAX, SettingError, is_count
from riverrun.security.protocols import (
    CREATION_RATE,
    LISTENER_LIMITS,
    LISTENER_PREFIX,
    MAX_CONNECTIONS,
)
from riverrun.security.quotas import PermitBucket
from riverrun.server.network.settings import NetworkSettings, parse_overrides

WAIT_SECONDS_MAX: Final = 10.0
"""A connection whose turn is further away is closed."""
BURST_SECONDS: Final = 10.0
"""Unused permits for new connections are saved for this time."""
ADDRESSES_MAX: Final = 10_000
"""Addresses whose rate is remembered."""
AddressRate = Callable[[str], float | None]


class Arrival(NamedTuple):
    """What happens to a new connection: it is refused for a reason, or it waits."""

    refusal: str | None = None
    detail: str = ""
    seconds: float = 0.0


class ConnectionLimits:
    """Decides about new connections of a node."""

    def __init__(
        self,
        settings: NetworkSettings,
        texts: Mapping[str, str],
        protected: Collection[str],
        address_rate: AddressRate,
    ) -> None:
        """``texts`` may have settings with the prefix of a listener. ``protected`` listeners have
        only limits of their own. ``address_rate`` is the quota of an address. Raises
        ``SettingError``.
        """
        self._settings = settings
        self._texts = texts
        self._protected = protected
        self._address_rate = address_rate
        self._overrides = parse_overrides(settings.connections_per_ip_overrides)
        self._buckets: dict[tuple[str, str], PermitBucket] = {}

    def configure(self, settings: NetworkSettings, texts: Mapping[str, str]) -> None:
        """Use new limits."""
        self._settings = settings
        self._texts = texts
        self._overrides = parse_overrides(settings.connections_per_ip_overrides)

    def of_listener(self, listener: str, name: str) -> int:
        """A limit of one listener; no limit if it is not a number."""
        text = self._texts.get(f"{LISTENER_PREFIX}{listener.lower()}.{name}", "")
        return int(text) if is_count(text.strip()) else INT_MAX

    def check(
        self,
        listener: str,
        address: str,
        *,
        on_node: int,
        on_listener: int,
        from_address: int,
        now: float,
    ) -> Arrival:
        """Decide about a new connection. The numbers are those of open connections."""
        settings = self._settings
        is_over = on_node >= settings.connections_max and listener not in self._protected
        if is_over or on_listener >= self.of_listener(listener, MAX_CONNECTIONS):
            return Arrival("max_connections", "too many connections")
        if from_address >= self._overrides.get(address, settings.connections_per_ip_max):
            return Arrival("max_connections_per_ip", "too many connections from one address")
        rate = None if listener in self._protected else self._address_rate(address)
        if rate is not None and self._turn("address", address, rate, now) > 0:
            text = "the address opens connections faster than its quota"
            return Arrival("connection_creation_rate", text)
        return self._arrival(listener, now)

    def _arrival(self, listener: str, now: float) -> Arrival:
        seconds = 0.0
        limits = [("listener", listener, self.of_listener(listener, CREATION_RATE))]
        if listener not in self._protected:
            limits.append(("node", "", self._settings.connection_rate_max))
        for scope, name, rate in limits:
            if rate < INT_MAX:
                seconds = max(seconds, self._turn(scope, name, max(rate, 1), now))
        if seconds > WAIT_SECONDS_MAX:
            return Arrival("max_connection_creation_rate", "connections come too fast")
        return Arrival(seconds=seconds)

    def _turn(self, scope: str, name: str, rate: float, now: float) -> float:
        """The seconds until a new connection may be served. A connection that is refused takes no
        permit."""
        key = scope, name
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= ADDRESSES_MAX:
                self._buckets.clear()
            bucket = self._buckets[key] = PermitBucket(BURST_SECONDS)
        seconds = bucket.wait(rate, now)
        if seconds == 0 or (scope != "address" and seconds <= WAIT_SECONDS_MAX):
            bucket.take(1, rate, now)
        return seconds


def check_listener_limits(texts: Mapping[str, str]) -> None:
    """Raises ``SettingError`` for limits that cannot be read."""
    for name, text in texts.items():
        is_limit = name.startswith(LISTENER_PREFIX) and name.endswith(LISTENER_LIMITS)
        if is_limit and not is_count(text.strip()):
            raise SettingError(name, text, "Not a number of type INT")
