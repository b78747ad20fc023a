"""Gets the tokens with which our connections log in by OAUTHBEARER, before they expire.

A token comes from an identity provider, by the client credentials grant of OAuth 2 (RFC 6749,
section 4.4) as Kafka's clients ask for it (KIP-768), or from a file that another program renews. It
is renewed before its life ends, and logins use it meanwhile: only a login without a valid token
waits. Requests and files are read in a thread, at most one at a time for each source. The thread is
a daemon, so a slow provider does not delay the end of the process or of an event loop.

No error contains a secret: neither the credentials, nor a token, nor the body of a response.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote_plus, unquote, urlsplit

from msgspec import Struct

from riverrun.ports.aio import Backoff, LogLimiter
from riverrun.ports.clock import Clock, SystemClock

KEPT_SHARE: Final = 0.8
"""A new token is requested when this part of the life of the last one is over, as in Kafka."""
UNUSED_SECONDS_MAX: Final = 60.0
"""How long a token of unknown life is kept if the login that asked for it gave up before it came.
Without this, logins whose time-out is shorter than the provider's delay would never succeed."""
LIFE_SECONDS_MAX: Final = 2.0**53
"""Longer lives are errors of the provider, and larger numbers may be no floats."""
WARNING_SECONDS: Final = 60.0
TRIES_MAX: Final = 3
TRY_SECONDS_MAX: Final = 10.0
BACKOFF: Final = Backoff(first_seconds=0.1, max_seconds=10.0)
RESPONSE_BYTES_MAX: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_TRANSIENT: Final = (408, 429)
"""The provider may answer differently soon; also after each status from 500 on."""
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")


class TokenRefused(Exception):
    """The provider refuses our credentials, or its answer holds no token. Do not retry."""


class BearerToken(Protocol):
    """The token of a client, which changes over time."""

    async def token(self) -> str:
        """A token for the next login. Raises ``OSError``, or ``TokenRefused``."""

    def refresh(self, login_in_seconds: float) -> None:
        """Renew the token in the background if it will be old at the next login."""


class IssuedToken(Struct, frozen=True, kw_only=True):
    text: str
    life_seconds: float | None
    """None if nothing says when it expires. It then serves one login."""


class TokenRequest(Struct, frozen=True, kw_only=True):
    """What to ask an identity provider for, and how."""

    url: str
    client_id: str
    client_secret: str
    scope: str = ""
    has_encoded_header: bool = False
    """Credentials are percent-encoded before they become a header, as RFC 6749 says. Most
    providers expect them as they are."""
    tls: ssl.SSLContext | None = None

    def headers(self) -> dict[str, str]:
        user, password = self.client_id, self.client_secret
        if self.has_encoded_header:
            user, password = quote_plus(user), quote_plus(password)
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {
            "Accept": "application/json",
            "Authorization": f"Basic {credentials}",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def body(self) -> bytes:
        scope = f"&scope={quote_plus(self.scope)}" if self.scope else ""
        return f"grant_type=client_credentials{scope}".encode()


class GivenToken:
    """A token that does not change."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text

    def refresh(self, login_in_seconds: float) -> None:
        """There is no other token."""


def token_file(url: str) -> Path:
    """The path in a ``file:`` URL."""
    return Path(unquote(urlsplit(url).path))


class TokenSource:
    """Keeps a token of one provider or file. It may be used in several threads and loops.

    So a renewal belongs to no loop: it is a thread, which nobody has to wait for.
    """

    def __init__(self, issue: Callable[[], IssuedToken], clock: Clock | None = None) -> None:
        """``issue`` may block. It raises ``OSError`` or ``TokenRefused``."""
        self._issue = issue
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._kept: IssuedToken | None = None
        self._issued_at = 0.0
        self._is_unused = False
        self._pending: Future[str] | None = None
        self._warnings = LogLimiter(self._clock, interval_seconds=WARNING_SECONDS)

    async def token(self) -> str:
        """The kept token, or another one if it is not valid. An old one is renewed meanwhile.

        If the caller stops waiting, the request goes on and serves the next caller.
        """
        with self._lock:
            self._refresh(0.0)
            kept = self._valid()
            if kept is not None:
                self._is_unused = False
                return kept.text
            pending = self._request()
        text = await asyncio.wrap_future(pending)
        with self._lock:
            self._is_unused = False
        return text

    def refresh(self, login_in_seconds: float) -> None:
        """Renew the token in the background if it will be old at the next login."""
        with self._lock:
            self._refresh(login_in_seconds)

    def _refresh(self, login_in_seconds: float) -> None:
        if self._kept is None or self._kept.life_seconds is None:
            return
        if self._age() + login_in_seconds >= self._kept.life_seconds * KEPT_SHARE:
            self._request()

    def _age(self) -> float:
        return self._clock.monotonic() - self._issued_at

    def _valid(self) -> IssuedToken | None:
        """The kept token, if it may be used."""
        if self._kept is None:
            return None
        life = self._kept.life_seconds
        if life is None:
            life = UNUSED_SECONDS_MAX if self._is_unused else 0.0
        return self._kept if self._age() < life else None

    def _request(self) -> Future[str]:
        """The pending request, which is started if there is none."""
        if self._pending is None:
            self._pending = Future()
            # A cancelled waiter must not cancel the request, which others wait for too.
            self._pending.set_running_or_notify_cancel()
            thread = threading.Thread(
                target=self._renew, args=(self._pending,), name="token", daemon=True
            )
            thread.start()
        return self._pending

    def _renew(self, pending: Future[str]) -> None:
        try:
            issued = self._issue()
        except BaseException as error:
            with self._lock:
                self._pending = None
                if self._valid() is not None and self._warnings.admit("renewal") is not None:
                    _warn("cannot renew the token; the last one is still valid", error)
            pending.set_exception(error)
            if not isinstance(error, OSError | TokenRefused):
                raise
            return
        with self._lock:
            self._pending = None
            self._kept = issued
            self._issued_at = self._clock.monotonic()
            self._is_unused = True
            self._warnings.reset("renewal")
        pending.set_result(issued.text)


def _warn(event: str, error: BaseException) -> None:
    import structlog  # it imports rich, which commands and the console start without

    structlog.get_logger("riverrun.client").warning(event, error=str(error))


def read_token(path: Path) -> IssuedToken:
    """The token in a file. It is read for each login, because another program renews it."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise ConnectionError(f"no token from {path}: {error.strerror}") from None
    if not text:
        raise TokenRefused(f"{path} holds no token")
    return IssuedToken(text=text, life_seconds=None)


def request_token(
    request: TokenRequest, pause: Callable[[float], None] = time.sleep
) -> IssuedToken:
    """Ask the provider, again after errors that may pass. Raises ``OSError``, ``TokenRefused``."""
    tries = 1
    while True:
        try:
            return _ask(request)
        except OSError:
            if tries >= TRIES_MAX:
                raise
        pause(BACKOFF.exact(tries))
        tries += 1


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the credentials to another place."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _ask(request: TokenRequest) -> IssuedToken:
    where = place_of(request.url)
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if request.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=request.tls))
    opener = urllib.request.build_opener(*handlers)
    asked = urllib.request.Request(
        request.url, data=request.body(), headers=request.headers(), method="POST"
    )
    deadline = time.monotonic() + TRY_SECONDS_MAX
    try:
        with opener.open(asked, timeout=TRY_SECONDS_MAX) as response:
            body = _read(response, deadline)
    except urllib.error.HTTPError as error:
        reason = f"{where} answers {error.code}{_error_code(error)}"
        if error.code >= 500 or error.code in _TRANSIENT:
            raise ConnectionError(reason) from None
        raise TokenRefused(f"{reason} to the request for a token") from None
    except (TimeoutError, urllib.error.URLError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConnectionError(f"no token from {where}: {cause}") from None
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: a name that cannot be a host, or an answer that is no HTTP.
        raise ConnectionError(f"no token from {where}: {type(error).__name__}") from None
    return parse_response(body, where)


def _read(response: Any, deadline: float) -> bytes:
    """The body of a response, in limited time and size."""
    parts: list[bytes] = []
    while part := response.read1(_CHUNK_BYTES):
        parts.append(part)
        if sum(map(len, parts)) > RESPONSE_BYTES_MAX:
            raise ConnectionError("the response is too large")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


def _error_code(error: urllib.error.HTTPError) -> str:
    """The code of RFC 6749, such as invalid_client. The description may quote what was sent."""
    try:
        code = json.loads(error.read(_CHUNK_BYTES)).get("error")
    except (OSError, ValueError, RecursionError, AttributeError, http.client.HTTPException):
        return ""
    return f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""


def parse_response(body: bytes, where: str) -> IssuedToken:
    """The token in the answer of a provider. Raises ``TokenRefused``."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise TokenRefused(f"the answer of {where} is not JSON") from None
    if not isinstance(found, dict):
        raise TokenRefused(f"the answer of {where} holds no token")
    text = found.get("access_token") or found.get("id_token")
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise TokenRefused(f"the answer of {where} holds no token")
    return IssuedToken(text=text, life_seconds=_life(found.get("expires_in"), text))


def _life(expires_in: object, token: str) -> float | None:
    is_number = isinstance(expires_in, int | float) and not isinstance(expires_in, bool)
    life = expires_in if is_number else life_of(token)
    assert life is None or isinstance(life, int | float), f"life of {type(life)}"
    return float(life) if life is not None and 0 < life <= LIFE_SECONDS_MAX else None


def life_of(token: str) -> float | None:
    """The life of a signed token (JWT) by its own claims; None if it has none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = json.loads(base64.urlsafe_b64decode(padded))
        return float(claims["exp"]) - float(claims["iat"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def place_of(url: str) -> str:
    """A URL for errors: without user, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"
