"""The address of a schema registry, with credentials that are never shown."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

USER_INFO_VARIABLE: Final = "RIVERRUN_REGISTRY_USER_INFO"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """One registry, with the URLs of all its nodes."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    """``user:password`` for basic authentication."""

    def __str__(self) -> str:
        return ",".join(self.urls)

    @property
    def authorization(self) -> str | None:
        """The value of the Authorization header."""
        if self.user_info is None:
            return None
        return f"Basic {base64.b64encode(self.user_info.encode()).decode()}"


def parse_registry(text: str, user_info: str | None = None) -> RegistryAddress:
    """Parse ``http://host:8081``, or several URLs separated by commas.

    The user info may be in a URL, in ``user_info``, or in the environment. Raises ValueError; the
    text never contains the user info.
    """
    urls: list[str] = []
    found = {user_info: None} if user_info else {}
    for part in text.split(","):
        url, own = _parse_url(part.strip())
        urls.append(url)
        if own is not None:
            found[own] = None
    if len(found) > 1:
        raise ValueError("the registry has more than one user and password")
    chosen = next(iter(found), None) or os.environ.get(USER_INFO_VARIABLE) or None
    if chosen is not None and ":" not in chosen:
        raise ValueError("the user info of the registry is not user:password")
    return RegistryAddress(tuple(urls), chosen)


def _parse_url(text: str) -> tuple[str, str | None]:
    shown = text.rpartition("@")[2]
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"{shown!r} is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{shown!r} is not an address such as http://127.0.0.1:8081")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown!r} has a query or a fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    authority = host if port is None else f"{host}:{port}"
    url = urlunsplit((parts.scheme, authority, parts.path.rstrip("/"), "", ""))
    if parts.username is None:
        return url, None
    return url, f"{unquote(parts.username)}:{unquote(parts.password or '')}"
