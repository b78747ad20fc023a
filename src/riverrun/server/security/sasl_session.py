"""The SASL conversation of one connection, as a state machine without I/O.

    start ── handshake(mechanism) ──> conversing ── authenticate(bytes) ... ──> authenticated
    authenticated ── handshake(same mechanism) ──> conversing again (KIP-368)

Any failure ends the conversation. What the client learns is the same for an unknown user and a
wrong password; the reason is for our own log.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.oauthbearer import (
    ACKNOWLEDGEMENT,
    OauthError,
    parse_bearer,
    refusal,
)
from riverrun.security.plain import PlainError, parse_plain
from riverrun.security.principal import USER, Principal
from riverrun.security.scram import (
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    parse_client_first,
)
from riverrun.security.tokens import AcceptedToken


class LoginPhase(Enum):
    START = "start"
    CONVERSING = "conversing"
    AUTHENTICATED = "authenticated"


class LoginFailed(Exception):
    """The connection must be closed. ``message`` is for the client, the text for our log.

    ``user`` is who the client claims to be, if it said so.
    """

    def __init__(self, message: str, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.message = message
        self.user = user


class LoginStep(Struct, frozen=True, kw_only=True):
    """The answer to one message; ``principal`` is set when the login is complete."""

    reply: bytes
    principal: Principal | None = None
    expires_at: float | None = None
    """When the credentials expire, in seconds since 1970; None: never."""


class Logins(Protocol):
    """The users of a cluster, as one listener knows them."""

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None: ...

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None: ...

    def decoy(self, mechanism: ScramMechanism, user: str, *, is_token: bool) -> ScramCredential:
        """A credential for a user or token that does not exist. No password fits it."""

    def password(self, user: str) -> str | None:
        """The password of a user of PLAIN."""

    def bearer(self, token: str) -> AcceptedToken:
        """Raises ``OauthError``."""


class TokenLogin(Struct, frozen=True, kw_only=True):
    """A delegation token: the login of its owner, until it expires."""

    credential: ScramCredential
    owner: Principal
    expires_at: float


class SaslSession:
    """The state of one connection."""

    def __init__(
        self,
        logins: Logins,
        mechanisms: Sequence[SaslMechanism],
        *,
        nonce: Callable[[], str],
    ) -> None:
        self._logins = logins
        self._mechanisms = {mechanism.value: mechanism for mechanism in mechanisms}
        self._nonce = nonce
        self.phase = LoginPhase.START
        self.mechanism: SaslMechanism | None = None
        self.principal: Principal | None = None
        self._conversation: _Conversation | None = None

    @property
    def mechanisms(self) -> Mapping[str, SaslMechanism]:
        return self._mechanisms

    def handshake(self, name: str) -> bool:
        """Begin a login. Returns False if the mechanism is not offered: answer, then close."""
        mechanism = self._mechanisms.get(name)
        if mechanism is None:
            return False
        if self.principal is not None and mechanism is not self.mechanism:
            raise LoginFailed(
                "The mechanism must not change", f"another mechanism in a renewed login: {name}"
            )
        self.mechanism, self.phase = mechanism, LoginPhase.CONVERSING
        self._conversation = self._begin(mechanism)
        return True

    def authenticate(self, message: bytes) -> LoginStep:
        """The answer to a message of the client. Raises ``LoginFailed``."""
        conversation = self._conversation
        if self.phase is not LoginPhase.CONVERSING or conversation is None:
            raise LoginFailed("A SaslHandshake request is required first", "no handshake")
        step = conversation.step(message)
        if step.principal is not None:
            if self.principal not in (None, step.principal):
                raise LoginFailed(
                    "The user must not change",
                    f"{step.principal} instead of {self.principal} in a renewed login",
                    step.principal.name,
                )
            self.principal = step.principal
            self.phase, self._conversation = LoginPhase.AUTHENTICATED, None
        return step

    def _begin(self, mechanism: SaslMechanism) -> _Conversation:
        scram = mechanism.scram
        if scram is not None:
            return _ScramConversation(scram, self._logins, self._nonce)
        if mechanism is SaslMechanism.PLAIN:
            return _PlainConversation(self._logins)
        return _BearerConversation(self._logins)


class _Conversation(Protocol):
    def step(self, message: bytes) -> LoginStep: ...


class _PlainConversation:
    def __init__(self, logins: Logins) -> None:
        self._logins = logins

    def step(self, message: bytes) -> LoginStep:
        text = "Authentication failed: Invalid username or password"
        try:
            login = parse_plain(message)
        except PlainError as error:
            raise LoginFailed(text, str(error)) from None
        expected = self._logins.password(login.user)
        # Compare also for an unknown user, so that both take the same time.
        is_equal = hmac.compare_digest((expected or "").encode(), login.password.encode())
        if expected is None or not is_equal:
            raise LoginFailed(text, "wrong user or password", login.user)
        return LoginStep(reply=b"", principal=Principal(USER, login.user))


class _ScramConversation:
    def __init__(self, mechanism: ScramMechanism, logins: Logins, nonce: Callable[[], str]) -> None:
        self._mechanism = mechanism
        self._logins = logins
        self._nonce = nonce
        self._server: ScramServer | None = None
        self._principal: Principal | None = None
        self._user = ""
        self._expires_at: float | None = None

    def step(self, message: bytes) -> LoginStep:
        mechanism = self._mechanism
        try:
            if self._server is None:
                return self._first(message)
            reply = self._server.finish(message)
        except ScramError as error:
            raise LoginFailed(
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {mechanism.title}",
                str(error),
                self._user,
            ) from None
        return LoginStep(reply=reply, principal=self._principal, expires_at=self._expires_at)

    def _first(self, message: bytes) -> LoginStep:
        first = parse_client_first(message)
        self._user = first.user
        self._principal = Principal(USER, first.user)
        credential: ScramCredential | None
        if first.is_token:
            token = self._logins.token(self._mechanism, first.user)
            credential = None if token is None else token.credential
            if token is not None:
                owner = token.owner
                self._principal = Principal(owner.kind, owner.name, is_token=True)
                self._expires_at = token.expires_at
        else:
            credential = self._logins.scram(self._mechanism, first.user)
        if credential is None:
            credential = self._logins.decoy(self._mechanism, first.user, is_token=first.is_token)
        self._server = ScramServer(self._mechanism, first, credential, self._nonce())
        return LoginStep(reply=self._server.server_first.encode())


class _BearerConversation:
    def __init__(self, logins: Logins) -> None:
        self._logins = logins
        self._refused: str | None = None

    def step(self, message: bytes) -> LoginStep:
        text = "Authentication failed: the token was not accepted"
        if self._refused is not None:
            if message != ACKNOWLEDGEMENT:
                self._refused += ", and the client continued"
            raise LoginFailed(text, self._refused)
        try:
            login = parse_bearer(message)
        except OauthError as error:
            raise LoginFailed(text, str(error)) from None
        try:
            accepted = self._logins.bearer(login.token)
            if login.authorization_id not in ("", accepted.subject):
                raise OauthError("acting for another user is not supported")
        except OauthError as error:
            self._refused = str(error)
            return LoginStep(reply=refusal())
        return LoginStep(
            reply=b"",
            principal=Principal(USER, accepted.subject),
            expires_at=accepted.expires_at,
        )
