"""Who uses the console: logins with a cookie for browsers, and HTTP Basic for scripts.

The broker checks the credentials: a login opens a connection as that user. The console keeps no
users and no rights of its own. Each cluster has its own users, so a login belongs to one cluster
and is never sent to another. A session may hold one login for each cluster. If no cluster of the
console has logins, all share one access.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from starlette.requests import Request

from riverrun.client.security import AuthenticationFailed, SaslLogin
from riverrun.client.token_source import GivenToken
from riverrun.console.clusters import ClusterEntry, ConnectedCluster
from riverrun.console.problems import ApiProblem, problem
from riverrun.ports.aio import discard_result
from riverrun.security.mechanisms import MECHANISMS, SaslMechanism

SESSIONS_MAX: Final = 1000
SESSIONS_PER_USER_MAX: Final = 50
"""Further logins of a user close the one that was used least recently."""
SESSION_IDLE_SECONDS_MAX: Final = 8 * 3600.0
SCRIPT_IDLE_SECONDS_MAX: Final = 600.0
"""HTTP Basic sends the credentials again, so such a login is kept for a short time only."""
LOGINS_AT_ONCE_MAX: Final = 8
"""That the cluster checks. Further ones wait."""
LOGINS_WAITING_MAX: Final = 100
LOGINS_PER_USER_MAX: Final = 4
"""At once, with failed ones that wait for their response. So a guesser tries so many passwords of a
user in a second, and keeps no other user out."""
FAILED_LOGIN_SECONDS: Final = 1.0
"""A failed login is answered late, so that guessing passwords is slow."""
SESSION_ID_BYTES: Final = 32


class ClusterLogin(Struct, frozen=True, kw_only=True):
    """A login to one cluster."""

    cluster: str
    login: SaslLogin
    user: str
    owner: str
    """Equal for all logins of one user of the cluster."""


class UserAccess:
    """A user's connections to the clusters of the console."""

    def __init__(
        self, entries: Sequence[ClusterEntry], logins: Sequence[ClusterLogin] = ()
    ) -> None:
        """``logins`` has at most one for each cluster; none: all users share this access."""
        self._entries = {entry.name: entry for entry in entries}
        self._logins = {each.cluster: each for each in logins}
        self._connected: dict[str, ConnectedCluster] = {}
        self._streams = 0

    @property
    def owner(self) -> str | None:
        """Who is limited in sessions and streams; None: everybody."""
        return next((each.owner for each in self._logins.values()), None)

    def user_in(self, name: str) -> str | None:
        """The user as whom a cluster is used, if it has users."""
        known, entry = self._logins.get(name), self._entries.get(name)
        if known is not None:
            return known.user
        if entry is None or entry.own_login is None:
            return None
        return entry.own_login.user or None

    @property
    def is_streaming(self) -> bool:
        """Whether a response is still being sent."""
        return self._streams > 0

    async def streamed(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a response. The login does not expire while they are sent."""
        self._streams += 1
        try:
            async for part in parts:
                yield part
        finally:
            self._streams -= 1

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that can be used without a further login."""
        return tuple(name for name in self._entries if self.is_open(name))

    def is_open(self, name: str) -> bool:
        """Whether a declared cluster can be used without a further login."""
        return name in self._logins or not self._entries[name].needs_login

    async def take_over(self, other: UserAccess) -> None:
        """Add the logins and connections of another access, whose connections to the same clusters
        are closed."""
        for name, login in other._logins.items():
            if name in self._entries:
                await self._replace(name, login, other._connected.pop(name, None))
        await other.close()

    async def _replace(
        self, name: str, login: ClusterLogin, connected: ConnectedCluster | None
    ) -> None:
        replaced = self._connected.pop(name, None)
        # The newest login comes first: it is limited as its user.
        self._logins.pop(name, None)
        self._logins = {name: login, **self._logins}
        if connected is not None:
            self._connected[name] = connected
        if replaced is not None:
            await replaced.close()

    def connected(self, name: str) -> ConnectedCluster:
        """The user's connections to a cluster. Raises ``ApiProblem``."""
        if name not in self._connected:
            entry = self._entries.get(name)
            if entry is None:
                known = ", ".join(self._entries)
                raise problem(
                    "not_found", f"This console has no cluster {name}.", f"It has: {known}."
                )
            entry.check_usable()
            if not self.is_open(name):
                raise problem(
                    "login_required",
                    f"Log in to the cluster {name} first.",
                    "Each cluster has its own users. Send a user and a password of this one.",
                )
            own = self._logins.get(name)
            self._connected[name] = ConnectedCluster(entry, own.login if own else None)
        return self._connected[name]

    async def close(self) -> None:
        connected, self._connected = list(self._connected.values()), {}
        for each in connected:
            await each.close()


class _Session(Struct):
    access: UserAccess
    idle_seconds_max: float
    used_at: float


class ConsoleSessions:
    """All logins of one console."""

    def __init__(
        self,
        entries: Sequence[ClusterEntry],
        *,
        needs_https: bool = False,
        now: Callable[[], float] = time.monotonic,
        failed_login_seconds: float = FAILED_LOGIN_SECONDS,
    ) -> None:
        assert entries, "a console has at least one cluster"
        self.entries = tuple(entries)
        self._needs_https = needs_https
        self._now = now
        self._failed_login_seconds = failed_login_seconds
        self._sessions: dict[str, _Session] = {}
        """By id, the one used last at the end."""
        self._opening: dict[str, asyncio.Task[UserAccess]] = {}
        """Logins of scripts in progress: requests with the same credentials share one."""
        self._script_key = secrets.token_bytes(32)
        self._logins = asyncio.Semaphore(LOGINS_AT_ONCE_MAX)
        self._attempts: Counter[str] = Counter()
        """Logins in progress, by owner."""
        self._waiting = 0
        self._shared: UserAccess | None = None
        if not self.needs_login:
            self._shared = UserAccess(entries)

    @property
    def needs_login(self) -> bool:
        return any(entry.needs_login for entry in self.entries)

    def login_entry(self, cluster: str | None) -> ClusterEntry | None:
        """The cluster whose users log in to use a cluster: this one, if it has logins, or the first
        one that has. None: no cluster has. Raises ``ApiProblem`` for an unknown name."""
        if cluster is not None and all(entry.name != cluster for entry in self.entries):
            known = ", ".join(entry.name for entry in self.entries)
            raise problem(
                "not_found", f"This console has no cluster {cluster}.", f"It has: {known}."
            )
        candidates = [entry for entry in self.entries if entry.needs_login]
        own = [entry for entry in candidates if entry.name == cluster]
        return next(iter(own or candidates), None)

    @property
    def count(self) -> int:
        """Logins that have not expired."""
        return len(self._sessions)

    async def access_of(self, raw: Request, cluster: str | None) -> UserAccess | None:
        """The user of a request; None if it has to log in. Credentials of a script are those of the
        cluster that it asks for. Raises ``ApiProblem``."""
        if self._shared is not None:
            return self._shared
        await self.drop_expired()
        header = raw.headers.get("authorization", "")
        if header:
            self.check_protected(raw)
            return await self._script_access(header, cluster)
        return self._find(raw.cookies.get(cookie_name(raw), ""))

    def check_protected(self, raw: Request) -> None:
        """Refuse a password that crossed the network unprotected, although HTTPS is there."""
        if self._needs_https and not is_https(raw):
            raise problem(
                "forbidden",
                "A login needs HTTPS here.",
                f"Use https://{raw.headers.get('host', '')}/. A proxy with TLS sends the header "
                "X-Forwarded-Proto: https.",
            )

    def _find(self, session_id: str) -> UserAccess | None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return None
        session.used_at = self._now()
        self._sessions[session_id] = session
        return session.access

    async def _script_access(self, header: str, cluster: str | None) -> UserAccess:
        entry = self.login_entry(cluster)
        assert entry is not None, "without logins all users share an access"
        digest = hashlib.blake2b(header.encode(), key=self._script_key, digest_size=32)
        session_id = f"script {entry.name} {digest.hexdigest()}"
        known = self._find(session_id)
        if known is not None:
            return known
        opening = self._opening.get(session_id)
        if opening is None:
            # A task of its own, because a request may be cancelled while others wait for it.
            opening = asyncio.create_task(self._open_script(session_id, header, entry))
            self._opening[session_id] = opening
            opening.add_done_callback(discard_result)
        return await asyncio.shield(opening)

    async def _open_script(self, session_id: str, header: str, entry: ClusterEntry) -> UserAccess:
        try:
            scheme, _, rest = header.partition(" ")
            if scheme.lower() == "bearer":
                mechanism: str | None = SaslMechanism.OAUTHBEARER.value
                user, password = "", rest.strip()
            elif scheme.lower() == "basic":
                mechanism, (user, password) = None, _basic(rest)
            else:
                raise problem("invalid", f"Authorization {scheme} is not supported.", "Use Basic.")
            access = await self._open(entry, user, password, mechanism)
            await self._keep(session_id, access, SCRIPT_IDLE_SECONDS_MAX)
        finally:
            del self._opening[session_id]
        return access

    async def log_in(
        self,
        user: str,
        password: str,
        mechanism: str | None,
        *,
        cluster: str | None = None,
        session_id: str = "",
    ) -> tuple[str, UserAccess]:
        """Log in to a cluster: the id of the session for the cookie, and the access. An open
        session keeps its logins to other clusters, under a new id. Raises ``ApiProblem``."""
        entry = self.login_entry(cluster)
        assert entry is not None, "without logins all users share an access"
        access = await self._open(entry, user, password, mechanism)
        before = self._sessions.pop(session_id, None)
        if before is not None:
            await before.access.take_over(access)
            access = before.access
        session_id = secrets.token_urlsafe(SESSION_ID_BYTES)
        await self._keep(session_id, access, SESSION_IDLE_SECONDS_MAX)
        return session_id, access

    async def log_out(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.access.close()

    async def _keep(self, session_id: str, access: UserAccess, idle_seconds_max: float) -> None:
        own = [key for key, one in self._sessions.items() if one.access.owner == access.owner]
        if len(own) >= SESSIONS_PER_USER_MAX:
            await self.log_out(own[0])
        elif len(self._sessions) >= SESSIONS_MAX:
            await self.log_out(next(iter(self._sessions)))
        self._sessions[session_id] = _Session(access, idle_seconds_max, self._now())

    async def drop_expired(self) -> None:
        now = self._now()
        expired = [
            session_id
            for session_id, session in self._sessions.items()
            if now - session.used_at > session.idle_seconds_max and not session.access.is_streaming
        ]
        for session_id in expired:
            await self.log_out(session_id)

    async def close(self) -> None:
        for session_id in list(self._sessions):
            await self.log_out(session_id)
        if self._shared is not None:
            await self._shared.close()

    async def _open(
        self, entry: ClusterEntry, user: str, password: str, mechanism: str | None
    ) -> UserAccess:
        entry.check_usable()
        with self._waits():  # The first login asks the cluster, which may not answer.
            choices = await self._choices(entry, mechanism)
        owner = f"{_owner(choices, user, password)} of {entry.name}"
        if self._attempts[owner] >= LOGINS_PER_USER_MAX:
            raise _too_many()
        self._attempts[owner] += 1
        try:
            result = await self._checked(entry, choices, user, password, owner)
            if isinstance(result, UserAccess):
                return result
            await asyncio.sleep(self._failed_login_seconds)
        finally:
            self._attempts[owner] -= 1
            self._attempts += Counter()  # drops owners without logins
        raise ApiProblem(
            401, "login_required", "The cluster refuses this user or password.", _remedy(result)
        )

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """Count a login that waits. Raises ``ApiProblem`` if too many do."""
        if self._waiting >= LOGINS_WAITING_MAX:
            raise _too_many()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _checked(
        self,
        entry: ClusterEntry,
        choices: Sequence[SaslMechanism],
        user: str,
        password: str,
        owner: str,
    ) -> UserAccess | AuthenticationFailed | None:
        """The access, or why the cluster refuses the login; None without any mechanism."""
        failure: AuthenticationFailed | None = None
        with self._waits():
            await self._logins.acquire()
        try:
            for chosen in choices:
                login = ClusterLogin(
                    cluster=entry.name,
                    login=_login(chosen, user, password),
                    user=user or "token",
                    owner=owner,
                )
                access = UserAccess(self.entries, [login])
                try:
                    await access.connected(entry.name).pool.any_connection()
                except AuthenticationFailed as error:
                    await access.close()
                    failure = error
                except OSError:
                    await access.close()
                    raise
                else:
                    return access
        finally:
            self._logins.release()
        return failure

    async def _choices(
        self, entry: ClusterEntry, mechanism: str | None
    ) -> tuple[SaslMechanism, ...]:
        """The mechanisms to try. Without a choice of the user, those that take a password."""
        offered = await entry.mechanisms()
        if mechanism is None:
            passwords = [one for one in offered if one is not SaslMechanism.OAUTHBEARER]
            return tuple(passwords or offered)
        chosen = MECHANISMS.get(mechanism.upper())
        if chosen is None or chosen not in offered:
            raise problem(
                "invalid", f"The cluster does not offer {mechanism}.", f"Use {', '.join(offered)}."
            )
        return (chosen,)


def _too_many() -> ApiProblem:
    return problem("too_many", "Too many logins at once.", "Try again in a second.")


def _remedy(failure: AuthenticationFailed | None) -> str:
    if failure is None:
        return "The cluster offers no mechanism that the console supports."
    return "Check both. An administrator sets passwords with `riverrun users`."


def _login(mechanism: SaslMechanism, user: str, password: str) -> SaslLogin:
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslLogin(mechanism=mechanism, bearer_token=GivenToken(password))
    return SaslLogin(mechanism=mechanism, user=user, password=password)


def _owner(mechanisms: Sequence[SaslMechanism], user: str, password: str) -> str:
    """A token is a name of its own: the cluster ignores the user that came with it."""
    if SaslMechanism.OAUTHBEARER in mechanisms:
        return f"token {hashlib.blake2b(password.encode(), digest_size=16).hexdigest()}"
    return f"user {user}"


def _basic(encoded: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise problem("invalid", "The Authorization header is not valid Basic.") from None
    user, _, password = text.partition(":")
    return user, password


def cookie_name(raw: Request) -> str:
    """Browsers share cookies between the ports of a host, and each node has its own sessions."""
    _, colon, port = raw.headers.get("host", "").rpartition(":")
    name = f"riverrun_{port}" if colon and port.isdigit() else "riverrun"
    # With this prefix, browsers take the cookie from this host alone, not from its domain.
    return f"__Host-{name}" if is_https(raw) else name


def is_https(raw: Request) -> bool:
    """Whether the browser uses HTTPS, also through a proxy."""
    return "https" in (raw.url.scheme, raw.headers.get("x-forwarded-proto"))
