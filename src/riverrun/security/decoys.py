"""SCRAM credentials of users that do not exist.

A login as an unknown user must look like one with a wrong password. So it gets a salt and a number
of iterations too, of the form that the credentials of real users have.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from riverrun.security.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKA_SALT_BITS: Final = 130
_KAFKA_SALT_BYTES: Final = (24, 25, 26)
"""The usual lengths of a number of 130 bits to the base 36."""


class CredentialForm(Struct, frozen=True, kw_only=True):
    """What the first message of a server tells about a credential, besides the salt itself.

    Kafka's tools make salts of letters and digits: a random number of 130 bits to the base 36.
    """

    iterations: int
    salt_bytes: int = 0
    """0 for a salt of Kafka's tools, whose length varies."""


DEFAULT_FORM: Final = CredentialForm(iterations=ITERATIONS_DEFAULT, salt_bytes=SALT_BYTES)
"""The form of users that riverrun's commands add."""


def form_of(salt: bytes, iterations: int) -> CredentialForm:
    is_of_kafka = len(salt) in _KAFKA_SALT_BYTES and all(chr(byte) in _DIGITS for byte in salt)
    return CredentialForm(iterations=iterations, salt_bytes=0 if is_of_kafka else len(salt))


def common_form(forms: Iterable[CredentialForm]) -> CredentialForm:
    """The most common form, and the first of equally common ones."""
    (found, _), *_ = Counter(forms).most_common(1) or [(DEFAULT_FORM, 0)]
    return found


def decoy_credential(
    mechanism: ScramMechanism, secret: bytes, user: str, form: CredentialForm
) -> ScramCredential:
    """A credential that no password fits. The conversation fails at its end, as with a wrong
    password. With the same secret, a name always gets the same credential."""

    def derived(purpose: str, size: int) -> bytes:
        label = f"{purpose} {mechanism.title} {user}"
        parts = [
            hmac.digest(secret, f"{place} {label}".encode(), "sha512")
            for place in range(-(-size // 64))
        ]
        return b"".join(parts)[:size]

    salt = derived("salt", form.salt_bytes or -(-_KAFKA_SALT_BITS // 8))
    if not form.salt_bytes:
        salt = _to_base_36(int.from_bytes(salt) % (1 << _KAFKA_SALT_BITS))
    return ScramCredential(
        salt=salt,
        stored_key=derived("stored key", mechanism.key_bytes),
        server_key=derived("server key", mechanism.key_bytes),
        iterations=form.iterations,
    )


def _to_base_36(number: int) -> bytes:
    digits = []
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode()
