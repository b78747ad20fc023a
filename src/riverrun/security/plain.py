"""SASL PLAIN (RFC 4616): user and password as they are. Use it over TLS."""

from __future__ import annotations

from msgspec import Struct

MESSAGE_BYTES_MAX = 8 * 1024


class PlainError(Exception):
    """A malformed message. The text is for our own log."""


class PlainLogin(Struct, frozen=True):
    user: str
    password: str


def plain_message(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def parse_plain(message: bytes) -> PlainLogin:
    """Raises ``PlainError``."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise PlainError("the message is too long")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise PlainError("the message is not UTF-8") from None
    if len(parts) != 3:
        raise PlainError(f"the message has {len(parts)} parts instead of 3")
    authorization, user, password = parts
    if not user or not password:
        raise PlainError("user or password is empty")
    if authorization not in ("", user):
        raise PlainError("acting for another user is not supported")
    return PlainLogin(user, password)
