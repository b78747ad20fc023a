"""Validation of the signed tokens (JWT) of SASL OAUTHBEARER (KIP-768).

A token is accepted if one of the issuer's published keys (JWKS) signed it, it is within its time,
and issuer, audience and subject are the expected ones. Unsigned tokens are never accepted.
PyJWT verifies signatures; this module decides what must hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from riverrun.security.oauthbearer import OauthError

if TYPE_CHECKING:
    from jwt import PyJWK

KEY_ID_CHARACTERS_MAX: Final = 1000
KEYS_MAX: Final = 1000
JWKS_BYTES_MAX: Final = 1024 * 1024
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""Signatures by a private key. With a shared secret, a node that checks tokens could make them."""


class TokenRules(Struct, frozen=True, kw_only=True):
    """The ``sasl.oauthbearer.*`` settings that decide about a token."""

    audience: tuple[str, ...] = ()
    issuer: str = ""
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    clock_skew_seconds: int = 30


class AcceptedToken(Struct, frozen=True, kw_only=True):
    subject: str
    expires_at: float
    """Seconds since 1970."""


class UnknownKey(OauthError):
    """No known key has the id that the token names. The keys may have changed."""

    def __init__(self, key_id: str) -> None:
        super().__init__("the token is signed by an unknown key")
        self.key_id = key_id


def parse_keys(data: bytes) -> dict[str, PyJWK]:
    """The keys of a JWKS document, by their id. Raises ``OauthError``."""
    jwt = _library()
    try:
        listed = json.loads(data)["keys"][:KEYS_MAX]
    except (ValueError, KeyError, TypeError):
        raise OauthError("the key set is not a JWKS document") from None
    keys: dict[str, Any] = {}
    for one in listed:
        try:
            key = jwt.PyJWK(one)
        except (jwt.PyJWTError, TypeError, AttributeError):
            continue  # a key of a kind that we do not know does not disable the others
        if key.public_key_use in (None, "sig") and key.key_id and key.algorithm_name in ALGORITHMS:
            keys[key.key_id] = key
    return keys


def accept_token(
    token: str, keys: Mapping[str, PyJWK], rules: TokenRules, now: float
) -> AcceptedToken:
    """Raises ``OauthError``, and ``UnknownKey`` if the keys should be read again."""
    jwt = _library()
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise OauthError(f"not a signed token: {error}") from None
    key_id = header.get("kid")
    if not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX:
        raise OauthError("the token does not name its key")
    key = keys.get(key_id)
    if key is None:
        raise UnknownKey(key_id)
    if header.get("alg") != key.algorithm_name:
        raise OauthError(f"the token is signed with {header.get('alg')}, not {key.algorithm_name}")
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm_name],
            audience=list(rules.audience) or None,
            issuer=rules.issuer or None,
            leeway=rules.clock_skew_seconds,
            options={
                "require": ["exp", "iat", rules.subject_claim],
                "verify_aud": bool(rules.audience),
                # Times are checked below, against our own clock.
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
            },
        )
    except jwt.PyJWTError as error:
        raise OauthError(f"the token is not valid: {error}") from None
    _check_times(claims, rules, now)
    return AcceptedToken(subject=_subject(claims, rules), expires_at=float(claims["exp"]))


def _check_times(claims: Mapping[str, Any], rules: TokenRules, now: float) -> None:
    times = {name: claims.get(name) for name in ("exp", "iat", "nbf")}
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise OauthError(f"the claim {name} is not a time")
    expires, issued, begins = times["exp"], times["iat"], times["nbf"]
    assert expires is not None and issued is not None, "required claims were checked"
    skew = rules.clock_skew_seconds
    if now > expires + skew:
        raise OauthError("the token has expired")
    if issued > now + skew or (begins is not None and begins > now + skew):
        raise OauthError("the token is not valid yet")
    if expires <= issued:
        raise OauthError("the token expires before it was issued")


def _subject(claims: Mapping[str, Any], rules: TokenRules) -> str:
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise OauthError(f"the claim {rules.subject_claim} is missing or empty")
    scope = claims.get(rules.scope_claim)
    if scope is not None and not isinstance(scope, str | list):
        raise OauthError(f"the claim {rules.scope_claim} is neither a text nor a list")
    return subject.strip()


def _library() -> Any:
    """PyJWT takes 30 ms to import, and most nodes never see a token."""
    import jwt  # noqa: PLC0415

    return jwt
