"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), for both ends of a connection.

Neither end sends the password. A server stores two keys that derive from it, so a stolen credential
does not let anybody log in as the user without its password.

    client-first   n,,n=user,r=nonce[,tokenauth=true]
    server-first   r=nonce+ours,s=salt,i=iterations
    client-final   c=biws,r=nonce+ours,p=proof
    server-final   v=signature, or e=reason

Kafka differs from the RFC: passwords are plain UTF-8 without SASLprep, channel binding is not
offered, and ``tokenauth`` selects delegation tokens (KIP-48).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from enum import Enum
from typing import Final

from msgspec import Struct

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
ITERATIONS_DEFAULT: Final = 8192
"""Of users that riverrun's commands add. Kafka's tools use the minimum."""
SALT_BYTES: Final = 24
MESSAGE_BYTES_MAX: Final = 8 * 1024
GS2_HEADER: Final = "n,,"
TOKEN_AUTHENTICATION: Final = "tokenauth"


class ScramMechanism(Enum):
    """Value: Kafka's number of the mechanism in records and requests."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def title(self) -> str:
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64

    @classmethod
    def named(cls, title: str) -> ScramMechanism | None:
        return next((one for one in cls if one.title == title), None)


class ScramError(Exception):
    """A malformed message or wrong credentials. The text is for our own log."""


class ScramCredential(Struct, frozen=True, kw_only=True):
    """What a server stores for one user and one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """The slow step: PBKDF2. Clients and administrators compute it, brokers never do for users."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential to store, from a salted password."""
    return ScramCredential(
        salt=salt,
        stored_key=_hash(mechanism, _client_key(mechanism, salted)),
        server_key=_hmac(mechanism, salted, b"Server Key"),
        iterations=iterations,
    )


class ClientFirst(Struct, frozen=True, kw_only=True):
    """A parsed client-first message."""

    user: str
    nonce: str
    bare: str
    is_token: bool


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises ``ScramError``."""
    text = _text(message)
    flag, separator, rest = text.partition(",")
    authorization, more, bare = rest.partition(",")
    if flag not in ("n", "y") or not separator or not more:
        raise ScramError("the message does not begin with n,, (no channel binding)")
    user_field, _, after = bare.partition(",")
    nonce_field, _, extensions = after.partition(",")
    if not user_field.startswith("n=") or not nonce_field.startswith("r=") or not nonce_field[2:]:
        raise ScramError("the message has no user or no nonce")
    user = _unescape(user_field[2:])
    if authorization and _unescape(authorization.removeprefix("a=")) != user:
        raise ScramError("acting for another user is not supported")
    options = dict(part.partition("=")[::2] for part in extensions.split(",") if part)
    return ClientFirst(
        user=user,
        nonce=nonce_field[2:],
        bare=bare,
        is_token=options.get(TOKEN_AUTHENTICATION, "").lower() == "true",
    )


class ScramServer:
    """The server's end of one conversation, after the user's credential was looked up."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        first: ClientFirst,
        credential: ScramCredential,
        nonce: str,
    ) -> None:
        """``nonce`` is our own random part."""
        self._mechanism = mechanism
        self._credential = credential
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(credential.salt).decode()
        self.server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._messages = f"{first.bare},{self.server_first}"

    def finish(self, client_final: bytes) -> bytes:
        """The server-final message. Raises ``ScramError`` if the proof is wrong."""
        text = _text(client_final)
        unproved, found, proof_text = text.rpartition(",p=")
        fields = dict(part.partition("=")[::2] for part in unproved.split(","))
        if not found or fields.get("r") != self._nonce:
            raise ScramError("the client's last message does not belong to this conversation")
        if fields.get("c") not in (_encoded("n,,"), _encoded("y,,")):
            raise ScramError("channel binding is not supported")
        proof = _decoded(proof_text)
        message = f"{self._messages},{unproved}".encode()
        mechanism, credential = self._mechanism, self._credential
        signature = _hmac(mechanism, credential.stored_key, message)
        if len(proof) != len(signature):
            raise ScramError("the proof has a wrong length")
        stored = _hash(mechanism, _xor(proof, signature))
        if not hmac.compare_digest(stored, credential.stored_key):
            raise ScramError("wrong password")
        return b"v=" + base64.b64encode(_hmac(mechanism, credential.server_key, message))


class ScramClient:
    """The client's end of one conversation."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        nonce: str,
        *,
        is_token: bool = False,
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        if is_token:
            self._bare += f",{TOKEN_AUTHENTICATION}=true"
        self._server_signature = b""

    @property
    def first(self) -> bytes:
        return (GS2_HEADER + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof. Raises ``ScramError`` if the server's message is invalid."""
        text = _text(server_first)
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        nonce, salt = fields.get("r", ""), _decoded(fields.get("s", ""))
        iterations = fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not salt:
            raise ScramError("the server's first message does not belong to this conversation")
        # A larger number would let a false server keep this process busy for hours.
        if not iterations.isdigit() or not ITERATIONS_MIN <= int(iterations) <= 1_000_000:
            raise ScramError(f"the server asks for {iterations or 'no'} iterations")
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, salt, int(iterations))
        unproved = f"c={_encoded(GS2_HEADER)},r={nonce}"
        message = f"{self._bare},{text},{unproved}".encode()
        client_key = _client_key(mechanism, salted)
        signature = _hmac(mechanism, _hash(mechanism, client_key), message)
        self._server_signature = _hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), message)
        proof = base64.b64encode(_xor(client_key, signature)).decode()
        return f"{unproved},p={proof}".encode()

    def check(self, server_final: bytes) -> None:
        """Verify that the server knows the credential too. Raises ``ScramError``."""
        text = _text(server_final)
        if text.startswith("e="):
            raise ScramError(f"the server refused: {text[2:]}")
        if not hmac.compare_digest(_decoded(text.removeprefix("v=")), self._server_signature):
            raise ScramError("the server does not know the user's credential")


def _client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return _hmac(mechanism, salted, b"Client Key")


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.digest)


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.digest, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("invalid base64") from None


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError("the message is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("the message is not UTF-8") from None


def _escape(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape(text: str) -> str:
    if text.count("=") != text.count("=2C") + text.count("=3D"):
        raise ScramError("the user name is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")
