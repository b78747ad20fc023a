"""The clusters that a console serves, and the connections of one user to them.

``ClusterEntry`` is a cluster as it was declared. ``ConnectedCluster`` is one user's view of it: a
connection pool that is logged in as that user, and results that requests share for a short time.
Nothing is shared between users, because ACLs decide what each of them sees.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.client.security import (
    LIBRDKAFKA_NAMES,
    TOKEN,
    TOKEN_URL,
    ClientSecurity,
    SaslLogin,
    sasl_login,
)
from riverrun.console.problems import problem
from riverrun.console.shell_words import joined
from riverrun.model.settings import SettingError
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.protocols import SecurityProtocol
from riverrun.security.tls import client_context, tls_settings
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_response import MetadataResponse
from riverrun.wire.messages.sasl_handshake_request import SaslHandshakeRequest

CLIENT_ID: Final = "riverrun-console"
COMMAND: Final = "riverrun"
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
"""The address that commands use if they are given none."""
CREDENTIALS: Final = ("sasl.jaas.config", "sasl.username", TOKEN, TOKEN_URL)
REQUEST_SECONDS_MAX: Final = 20.0
CONNECT_SECONDS_MAX: Final = 3.0
RETRY: Final = RetryPolicy(tries_max=4, total_s_max=8.0)
"""A person waits for the page: fail early, with the reason."""
PREFERENCE: Final = (
    SaslMechanism.SCRAM_SHA_512,
    SaslMechanism.SCRAM_SHA_256,
    SaslMechanism.PLAIN,
    SaslMechanism.OAUTHBEARER,
)
METADATA_SECONDS: Final = 2.0
METADATA_FACTOR: Final = 10.0
"""Metadata that takes long to read, because there are many partitions, is kept so much longer."""
RESULTS_MAX: Final = 64

Result = TypeVar("Result")


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """A cluster, as a node or a command declares it to its console."""

    name: str
    bootstrap: str
    """``HOST:PORT``, or several separated by commas."""
    properties: dict[str, str] = field(default_factory=dict)
    """Kafka's client settings. Without credentials on a SASL listener, users log in."""
    refusal: str = ""
    """Why the console cannot be used with this cluster."""
    remedy: str = ""


class ClusterEntry:
    """A declared cluster. Raises ``SettingError`` or ``ValueError`` if it is declared wrongly."""

    command_prefix = COMMAND

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.bootstrap = settings.bootstrap
        self._addresses = parse_bootstrap(settings.bootstrap)
        known = {LIBRDKAFKA_NAMES.get(key, key): text for key, text in settings.properties.items()}
        self.protocol = _protocol(known)
        self.own_login: SaslLogin | None = None
        if self.protocol.has_sasl and any(name in known for name in CREDENTIALS):
            self.own_login = sasl_login(known)
        self._tls: ssl.SSLContext | None = None
        if self.protocol.has_tls:
            self._tls = client_context(tls_settings(known))
        self._mechanisms: tuple[SaslMechanism, ...] = ()

    @property
    def needs_login(self) -> bool:
        """Whether users log in by themselves."""
        return self.protocol.has_sasl and self.own_login is None

    def check_usable(self) -> None:
        """Raise ``ApiProblem`` if the cluster was declared without a way to log in."""
        if self.settings.refusal:
            raise problem("forbidden", self.settings.refusal, self.settings.remedy or None)

    async def mechanisms(self) -> tuple[SaslMechanism, ...]:
        """The SASL mechanisms that the cluster offers and the console supports, best first."""
        if not self._mechanisms:
            offered = await self._ask_mechanisms()
            self._mechanisms = tuple(one for one in PREFERENCE if one.value in offered)
        return self._mechanisms

    async def _ask_mechanisms(self) -> tuple[str, ...]:
        security = ClientSecurity(tls=self._tls, login=None, randomness=SystemRandomness())
        async with self._pool(security) as pool:
            connection = await pool.any_connection()
            # No mechanism has an empty name, so the broker answers with those it offers.
            answer = await connection.request(
                ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="")
            )
        return tuple(answer.mechanisms)

    def command(self, *words: str) -> str:
        """The command line that does the same, quoted for a shell."""
        named = () if self.bootstrap == BOOTSTRAP_DEFAULT else ("--bootstrap", self.bootstrap)
        return joined((self.command_prefix, *words, *named))

    def open_pool(self, login: SaslLogin | None) -> ConnectionPool:
        """A pool that logs in as a user of this cluster, or with the declared credentials."""
        assert login is None or self.needs_login, f"{self.name} has no logins of users"
        security = None
        if self.protocol is not SecurityProtocol.PLAINTEXT:
            security = ClientSecurity(
                tls=self._tls, login=self.own_login or login, randomness=SystemRandomness()
            )
        return self._pool(security)

    def _pool(self, security: ClientSecurity | None) -> ConnectionPool:
        return ConnectionPool(
            self._addresses,
            client_id=CLIENT_ID,
            request_timeout_s=REQUEST_SECONDS_MAX,
            connect_timeout_s=CONNECT_SECONDS_MAX,
            retry=RETRY,
            security=security,
        )


def _protocol(texts: Mapping[str, str]) -> SecurityProtocol:
    name = texts.get("security.protocol", "PLAINTEXT").strip().upper()
    if name not in SecurityProtocol.__members__:
        raise SettingError(
            "security.protocol", name, f"it is one of: {', '.join(SecurityProtocol.__members__)}"
        )
    return SecurityProtocol[name]


class SharedResults:
    """Results that requests share while they are fresh. Concurrent requests wait for one result.

    A failure is raised to all that wait for it, and not kept. If a request is cancelled, the work
    goes on for the others.
    """

    def __init__(self) -> None:
        self._made: dict[object, _SharedResult] = {}

    async def get(
        self, key: object, seconds_max: float, make: Callable[[], Awaitable[Result]]
    ) -> Result:
        """The result of a key that is at most this old, or a new one."""
        now = asyncio.get_running_loop().time()
        known = self._made.get(key)
        if known is None or (known.task.done() and now - known.began_at > seconds_max):
            if len(self._made) >= RESULTS_MAX:
                self._drop_oldest()
            task = asyncio.ensure_future(_run(make))
            known = self._made[key] = _SharedResult(now, seconds_max, task)
        result: Result
        try:
            result = await asyncio.shield(known.task)
        finally:
            task = known.task
            is_failed = task.done() and (task.cancelled() or task.exception() is not None)
            if is_failed and self._made.get(key) is known:
                del self._made[key]
        return result

    def forget(self) -> None:
        """Drop results after a change, also unfinished ones, except those without an age."""
        self._made = {key: known for key, known in self._made.items() if known.seconds_max == inf}

    def close(self) -> None:
        for known in self._made.values():
            known.task.cancel()
        self._made.clear()

    def _drop_oldest(self) -> None:
        """Those without an age hold state, so they go last. Requests may wait for an unfinished
        result, so its work goes on."""

        def order(key: object) -> tuple[bool, float]:
            known = self._made[key]
            return known.seconds_max == inf, known.began_at

        del self._made[min(self._made, key=order)]


class _SharedResult(Struct):
    began_at: float
    seconds_max: float
    task: asyncio.Task[Any]


async def _run(make: Callable[[], Awaitable[Result]]) -> Result:
    return await make()


class ConnectedCluster:
    """One user's connections to a cluster."""

    def __init__(self, entry: ClusterEntry, login: SaslLogin | None) -> None:
        self.entry = entry
        self.pool = entry.open_pool(login)
        self.results = SharedResults()
        self._metadata_seconds = METADATA_SECONDS

    async def metadata(self) -> MetadataResponse:
        """All topics and nodes, a few seconds old. Do not change it: requests share it."""
        return await self.results.get("metadata", self._metadata_seconds, self._read_metadata)

    async def _read_metadata(self) -> MetadataResponse:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        found = await self.pool.try_again(lambda: self.pool.metadata(None))
        taken = loop.time() - began_at
        self._metadata_seconds = max(METADATA_SECONDS, METADATA_FACTOR * taken)
        return found

    async def close(self) -> None:
        self.results.close()
        await self.pool.close()
