"""Logins by delegation tokens (KIP-48): by SCRAM, with the id and the secret of a token."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from riverrun.cluster.security.delegation_tokens import is_expired, token_named
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.metadata.image import Image
from riverrun.ports.clock import Clock
from riverrun.security.delegation_tokens import token_hmac, token_password
from riverrun.security.principal import USER, Principal
from riverrun.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from riverrun.server.security.sasl_session import TokenLogin

CREDENTIALS_MAX: Final = 1000
"""Tokens whose credential is remembered. Deriving one takes some milliseconds."""


class TokenLogins:
    """The credentials of tokens, derived at the first login with each."""

    def __init__(
        self,
        settings: DelegationTokenSettings,
        image: Callable[[], Image],
        clock: Clock,
        secret: bytes,
    ) -> None:
        """``secret`` derives the salts."""
        self._settings = settings
        self._image = image
        self._clock = clock
        self._secret = secret
        self._credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """The login of a token; None if it does not exist, has expired, or is not of a user."""
        token = token_named(self._image(), token_id)
        if token is None or not self._settings.is_enabled:
            return None
        if is_expired(token, self._clock.now_ms()):
            return None
        try:
            owner = Principal.parse(token.owner)
        except ValueError:
            return None
        if owner.kind != USER:
            return None
        return TokenLogin(
            credential=self._credential(mechanism, token_id),
            owner=owner,
            expires_at=token.expiration_timestamp / 1000,
        )

    def _credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        key = mechanism, token_id
        known = self._credentials.get(key)
        if known is None:
            if len(self._credentials) >= CREDENTIALS_MAX:
                self._credentials.clear()
            password = token_password(token_hmac(self._settings.secret_key, token_id))
            salt = hmac.digest(self._secret, token_id.encode(), "sha512")[:SALT_BYTES]
            salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
            known = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
            self._credentials[key] = known
        return known
