"""The secret of a delegation token (KIP-48).

It is not stored. It derives from the id of the token and a key that all nodes have, so the metadata
log does not let anybody log in. The owner gives it to other programs, which log in by SCRAM with
the id as user name and the secret as password.
"""

from __future__ import annotations

import base64
import hmac


def token_hmac(secret_key: str, token_id: str) -> bytes:
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def token_password(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
