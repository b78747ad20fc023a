"""Operations that a client may do, as bits (KIP-430). Without an authorizer all may do all."""

from typing import Final

UNASKED: Final = -(2**31)
TOPIC: Final = 3576
"""Read, write, create, delete, alter, describe, and describe and alter settings."""
CLUSTER: Final = 8096
"""Create, alter, describe, cluster action, settings, idempotent write, tokens."""
