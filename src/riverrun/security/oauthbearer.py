"""The messages of SASL OAUTHBEARER (RFC 7628, KIP-255). Tokens are validated in ``tokens.py``.

client   n,[a=user],^Aauth=Bearer TOKEN[^Akey=value...]^A^A
server   empty: accepted, or a JSON text with the reason
client   ^A after a reason; the server then fails the authentication
"""

from __future__ import annotations

import json
from typing import Final

from msgspec import Struct

MESSAGE_BYTES_MAX: Final = 64 * 1024
SEPARATOR: Final = "\x01"
ACKNOWLEDGEMENT: Final = b"\x01"
"""The client's answer to a refusal."""
_SCHEME: Final = "bearer "


class OauthError(Exception):
    """A malformed message or an invalid token. The text is for our own log."""


class BearerLogin(Struct, frozen=True, kw_only=True):
    token: str
    authorization_id: str = ""


def bearer_message(token: str) -> bytes:
    return f"n,,{SEPARATOR}auth=Bearer {token}{SEPARATOR}{SEPARATOR}".encode()


def parse_bearer(message: bytes) -> BearerLogin:
    """Raises ``OauthError``."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise OauthError("the message is too long")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise OauthError("the message is not UTF-8") from None
    header, found, rest = text.partition(SEPARATOR)
    flag, *names = header.split(",")
    if not found or flag not in ("n", "y") or len(names) != 2 or not rest.endswith(SEPARATOR):
        raise OauthError("the message does not have the form of RFC 7628")
    pairs = dict(part.partition("=")[::2] for part in rest.split(SEPARATOR) if part)
    auth = pairs.get("auth", "")
    if auth[: len(_SCHEME)].lower() != _SCHEME or not auth[len(_SCHEME) :].strip():
        raise OauthError("the message has no bearer token")
    return BearerLogin(
        token=auth[len(_SCHEME) :].strip(),
        authorization_id=names[0].removeprefix("a="),
    )


def refusal(status: str = "invalid_token") -> bytes:
    """The server's answer to a token that it does not accept. It names no details."""
    return json.dumps({"status": status}).encode()
