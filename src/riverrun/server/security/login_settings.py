"""Settings with which a node gets tokens to log in to other nodes by OAUTHBEARER."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.client.security import (
    TOKEN_CLIENT,
    TOKEN_ENCODED,
    TOKEN_SCOPE,
    TOKEN_SECRET,
    TOKEN_URL,
)
from riverrun.model.settings import SettingKind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginTokenSettings(Settings):
    """Where a node gets its own tokens, if nodes log in to each other by OAUTHBEARER."""

    url: str = setting(
        "",
        name=TOKEN_URL,
        doc="The token endpoint of the identity provider: a https: URL, or a file: URL of a file"
        " with a token, which is read for each login.",
    )
    client: str = setting(
        "", name=TOKEN_CLIENT, doc="The id of this node at the identity provider."
    )
    secret: str = setting(
        "",
        name=TOKEN_SECRET,
        kind=SettingKind.PASSWORD,
        doc="The secret that belongs to the id.",
    )
    scope: str = setting("", name=TOKEN_SCOPE, doc="The scope to ask for. Empty: the default one.")
    has_encoded_header: bool = setting(
        False,
        name=TOKEN_ENCODED,
        doc="Whether id and secret are percent-encoded in the request, which some providers need.",
    )
