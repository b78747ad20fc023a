"""Who may send requests about delegation tokens, and how others are refused."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.principal import ANONYMOUS
from riverrun.server.dispatch.context import RequestContext


def check_token_request(context: RequestContext) -> None:
    """Raises DELEGATION_TOKEN_REQUEST_NOT_ALLOWED for a client that has not proved who it is, and
    for one that logged in by a token: a stolen token must not live longer than it was made for.

    A client of PLAINTEXT, or of SSL without a certificate, is always anonymous. The principal also
    travels with a forwarded request, so it decides, not the listener.
    """
    principal = context.principal
    is_anonymous = (principal.kind, principal.name) == (ANONYMOUS.kind, ANONYMOUS.name)
    if is_anonymous or principal.is_token:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def failed_expiry_ms(code: ErrorCode) -> int:
    """The expiry in a failed response, as Kafka sends it."""
    return -1 if code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED else 0
