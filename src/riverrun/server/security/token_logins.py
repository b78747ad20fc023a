"""Logins by delegation tokens (KIP-48): by SCRAM, with the id and the secret of a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from riverrun.cluster.security.delegation_tokens import is_expired, token_named
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.metadata.image import Image
from riverrun.ports.clock import Clock
from riverrun.security.decoys import CredentialForm, decoy_credential
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

_FORM: Final = CredentialForm(iterations=ITERATIONS_MIN, salt_bytes=SALT_BYTES)
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
        """``secret`` derives the salts, and the credentials of unknown tokens."""
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

    def decoy(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """The credential of a token that does not exist. No secret fits it."""
        return decoy_credential(mechanism, self._secret, token_id, _FORM)

    def _credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        key = mechanism, token_id
        known = self._credentials.get(key)
        if known is None:
            if len(self._credentials) >= CREDENTIALS_MAX:
                self._credentials.clear()
            password = token_password(token_hmac(self._settings.secret_key, token_id))
            salt = self.decoy(mechanism, token_id).salt
            salted = salted_password(mechanism, password, salt, _FORM.iterations)
            known = credential_of(mechanism, salted, salt, _FORM.iterations)
            self._credentials[key] = known
        return known
