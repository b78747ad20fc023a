"""Create, renew, expire and describe delegation tokens (KIP-48, KIP-373).

A token lets programs log in as its owner. Its owner and its renewers may renew and expire it; the
user that created it for another one may only see it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from riverrun.cluster.decision import RECORDS_MAX, Decision
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.metadata.entries import DELEGATION_TOKEN
from riverrun.metadata.image import Image
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.metadata.schema.remove_delegation_token_record import RemoveDelegationTokenRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness
from riverrun.security.delegation_tokens import token_hmac
from riverrun.security.principal import USER, Principal
from riverrun.storage.checkpoints import encode_uuid
from riverrun.wire.messages.create_delegation_token_response import CreateDelegationTokenResponse
from riverrun.wire.messages.describe_delegation_token_response import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenResponse,
)
from riverrun.wire.messages.expire_delegation_token_response import ExpireDelegationTokenResponse
from riverrun.wire.messages.renew_delegation_token_response import RenewDelegationTokenResponse

if TYPE_CHECKING:
    from riverrun.wire.messages.create_delegation_token_request import CreateDelegationTokenRequest
    from riverrun.wire.messages.describe_delegation_token_request import (
        DescribeDelegationTokenRequest,
    )
    from riverrun.wire.messages.expire_delegation_token_request import ExpireDelegationTokenRequest
    from riverrun.wire.messages.renew_delegation_token_request import RenewDelegationTokenRequest

MaySee = Callable[[DelegationTokenRecord], bool]
"""Whether a user that is neither owner, creator nor renewer may see a token."""


def token_owner(request: CreateDelegationTokenRequest, requester: Principal) -> Principal:
    """The owner of a new token: its creator, unless the request names another one."""
    if not request.owner_principal_name:
        return Principal(requester.kind, requester.name)
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def check_principals(owner: Principal, request: CreateDelegationTokenRequest) -> None:
    """Only users own and renew tokens. A token of another kind of principal would let its holder
    log in as a node. Raises INVALID_PRINCIPAL_TYPE."""
    kinds = (owner.kind, *(renewer.principal_type for renewer in request.renewers))
    if any(kind != USER for kind in kinds):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)


def tokens_of(image: Image) -> Iterator[DelegationTokenRecord]:
    for record in image.entries_of(DELEGATION_TOKEN).values():
        yield cast(DelegationTokenRecord, record)


def token_named(image: Image, token_id: str) -> DelegationTokenRecord | None:
    found = image.entries_of(DELEGATION_TOKEN).get((token_id,))
    return None if found is None else cast(DelegationTokenRecord, found)


def is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return min(token.expiration_timestamp, token.max_timestamp) < now_ms


def create_token(
    request: CreateDelegationTokenRequest,
    requester: Principal,
    settings: DelegationTokenSettings,
    randomness: Randomness,
    now_ms: int,
) -> Decision[CreateDelegationTokenResponse]:
    """Raises ``KafkaError``."""
    _check_enabled(settings)
    owner = token_owner(request, requester)
    check_principals(owner, request)
    lifetime_ms = settings.lifetime_ms_max
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token = DelegationTokenRecord(
        owner=str(owner),
        requester=str(requester),
        renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in request.renewers),
        issue_timestamp=now_ms,
        max_timestamp=now_ms + lifetime_ms,
        expiration_timestamp=now_ms + min(lifetime_ms, settings.expiry_ms),
        token_id=encode_uuid(randomness.uuid()),
    )
    return Decision(
        records=(token,),
        response=CreateDelegationTokenResponse(
            error_code=ErrorCode.NONE,
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=requester.kind,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=token.issue_timestamp,
            expiry_timestamp_ms=token.expiration_timestamp,
            max_timestamp_ms=token.max_timestamp,
            token_id=token.token_id,
            hmac=token_hmac(settings.secret_key, token.token_id),
            throttle_time_ms=0,
        ),
    )


def renew_token(
    image: Image,
    request: RenewDelegationTokenRequest,
    requester: Principal,
    settings: DelegationTokenSettings,
    now_ms: int,
) -> Decision[RenewDelegationTokenResponse]:
    """Raises ``KafkaError``."""
    _check_enabled(settings)
    token = _own_token(image, request.hmac, requester, settings, now_ms)
    period_ms = settings.expiry_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    renewed = _expiring(token, now_ms, period_ms)
    return Decision(
        records=(renewed,),
        response=RenewDelegationTokenResponse(
            error_code=ErrorCode.NONE,
            expiry_timestamp_ms=renewed.expiration_timestamp,
            throttle_time_ms=0,
        ),
    )


def expire_token(
    image: Image,
    request: ExpireDelegationTokenRequest,
    requester: Principal,
    settings: DelegationTokenSettings,
    now_ms: int,
) -> Decision[ExpireDelegationTokenResponse]:
    """A negative period removes the token at once. Raises ``KafkaError``."""
    _check_enabled(settings)
    token = _own_token(image, request.hmac, requester, settings, now_ms)
    period_ms = request.expiry_time_period_ms
    record: DelegationTokenRecord | RemoveDelegationTokenRecord
    if period_ms < 0:
        record, expiry_ms = RemoveDelegationTokenRecord(token_id=token.token_id), now_ms
    else:
        record = _expiring(token, now_ms, period_ms)
        expiry_ms = record.expiration_timestamp
    return Decision(
        records=(record,),
        response=ExpireDelegationTokenResponse(
            error_code=ErrorCode.NONE, expiry_timestamp_ms=expiry_ms, throttle_time_ms=0
        ),
    )


def remove_expired_tokens(image: Image, now_ms: int) -> Decision[int]:
    """Remove expired tokens; further ones next time. The response is their number."""
    records = tuple(
        RemoveDelegationTokenRecord(token_id=token.token_id)
        for token in tokens_of(image)
        if is_expired(token, now_ms)
    )[:RECORDS_MAX]
    return Decision(records=records, response=len(records))


def describe_tokens(
    image: Image,
    request: DescribeDelegationTokenRequest,
    requester: Principal,
    settings: DelegationTokenSettings,
    may_see: MaySee,
) -> DescribeDelegationTokenResponse:
    """The tokens of the given owners, or of all. Raises ``KafkaError``."""
    _check_enabled(settings)
    wanted = None
    if request.owners is not None:
        wanted = [f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners]
    tokens = tuple(
        _described(token, settings)
        for token in tokens_of(image)
        if (wanted is None or _concerns(token, wanted))
        and (_concerns(token, (str(requester),)) or may_see(token))
    )
    return DescribeDelegationTokenResponse(
        error_code=ErrorCode.NONE, tokens=tokens, throttle_time_ms=0
    )


def _check_enabled(settings: DelegationTokenSettings) -> None:
    """Raises DELEGATION_TOKEN_AUTH_DISABLED."""
    if not settings.is_enabled:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


def _own_token(
    image: Image,
    digest: bytes,
    requester: Principal,
    settings: DelegationTokenSettings,
    now_ms: int,
) -> DelegationTokenRecord:
    """The token with this secret, which the requester may change. Raises ``KafkaError``."""
    for token in tokens_of(image):
        if hmac.compare_digest(token_hmac(settings.secret_key, token.token_id), digest):
            if is_expired(token, now_ms):
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
            if str(requester) not in (token.owner, *token.renewers):
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
            return token
    raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def _expiring(token: DelegationTokenRecord, now_ms: int, period_ms: int) -> DelegationTokenRecord:
    return replace(token, expiration_timestamp=min(token.max_timestamp, now_ms + period_ms))


def _concerns(token: DelegationTokenRecord, principals: Sequence[str]) -> bool:
    """Whether one of these principals is its owner, its creator or a renewer."""
    return any(one in principals for one in (token.owner, token.requester, *token.renewers))


def _described(
    token: DelegationTokenRecord, settings: DelegationTokenSettings
) -> DescribedDelegationToken:
    owner, requester = _parts(token.owner), _parts(token.requester)
    return DescribedDelegationToken(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=token_hmac(settings.secret_key, token.token_id),
        renewers=tuple(
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in map(_parts, token.renewers)
        ),
    )


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
