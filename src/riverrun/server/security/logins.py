"""The users that a listener accepts: SCRAM users and tokens of the cluster, users of PLAIN from the
settings, and bearer tokens signed by a known key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from riverrun.cluster.security.scram_decoys import ScramDecoys
from riverrun.metadata.entries import USER_SCRAM_CREDENTIAL
from riverrun.metadata.image import Image
from riverrun.security.oauthbearer import OauthError
from riverrun.security.scram import ScramCredential, ScramMechanism
from riverrun.security.tokens import AcceptedToken
from riverrun.server.security.sasl_session import TokenLogin
from riverrun.server.security.token_logins import TokenLogins

if TYPE_CHECKING:
    from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord

Bearer = Callable[[str], AcceptedToken]


def scram_credential(image: Image, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    found = image.entries_of(USER_SCRAM_CREDENTIAL).get((user, mechanism.value))
    if found is None:
        return None
    record = cast("UserScramCredentialRecord", found)
    return ScramCredential(
        salt=record.salt,
        stored_key=record.stored_key,
        server_key=record.server_key,
        iterations=record.iterations,
    )


class ListenerLogins:
    """Implements ``Logins`` for one listener."""

    def __init__(
        self,
        image: Callable[[], Image],
        *,
        passwords: Mapping[str, str],
        decoys: ScramDecoys,
        tokens: TokenLogins,
        bearer: Bearer | None = None,
    ) -> None:
        """``passwords`` are the users of PLAIN."""
        self._image = image
        self._passwords = passwords
        self._decoys = decoys
        self._tokens = tokens
        self._bearer = bearer

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return scram_credential(self._image(), mechanism, user)

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        return self._tokens.find(mechanism, token_id)

    def decoy(self, mechanism: ScramMechanism, user: str, *, is_token: bool) -> ScramCredential:
        decoy = self._tokens.decoy if is_token else self._decoys.credential
        return decoy(mechanism, user)

    def password(self, user: str) -> str | None:
        return self._passwords.get(user)

    def bearer(self, token: str) -> AcceptedToken:
        if self._bearer is None:
            raise OauthError("bearer tokens are not accepted here")
        return self._bearer(token)
