"""Requests about delegation tokens: logins that a user gives to programs (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from riverrun.admin.access.rules import principal_of
from riverrun.admin.requests import NotFound, check
from riverrun.client.pool import ConnectionPool
from riverrun.security.principal import Principal
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_delegation_token_request import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from riverrun.wire.messages.create_delegation_token_response import CreateDelegationTokenResponse
from riverrun.wire.messages.describe_delegation_token_request import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from riverrun.wire.messages.describe_delegation_token_response import (
    DescribedDelegationToken,
    DescribeDelegationTokenResponse,
)
from riverrun.wire.messages.expire_delegation_token_request import ExpireDelegationTokenRequest
from riverrun.wire.messages.expire_delegation_token_response import ExpireDelegationTokenResponse
from riverrun.wire.messages.renew_delegation_token_request import RenewDelegationTokenRequest
from riverrun.wire.messages.renew_delegation_token_response import RenewDelegationTokenResponse

BY_THE_CLUSTER: Final = -1
"""The nodes' settings decide the time."""
AT_ONCE: Final = -1
LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedToken:
    id: str
    owner: str
    requester: str
    """The user that created it."""
    renewers: tuple[str, ...]
    created_ms: int
    expires_ms: int
    """Unless it is renewed."""
    ends_ms: int
    """It cannot be renewed beyond this time."""

    def described(self) -> dict[str, object]:
        return {
            "id": self.id,
            "owner": self.owner,
            "requester": self.requester,
            "renewers": list(self.renewers),
            "created_ms": self.created_ms,
            "expires_ms": self.expires_ms,
            "ends_ms": self.ends_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token with its secret, which is the password of the login."""

    token: ListedToken
    secret: str

    def described(self) -> dict[str, object]:
        return {**self.token.described(), "secret": self.secret}

    def properties(self, mechanism: str) -> list[str]:
        """The lines with which a client logs in."""
        login = f'username="{self.token.id}" password="{self.secret}" tokenauth="true"'
        return [
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config={LOGIN_MODULE} required {login};",
        ]


async def create_token(
    pool: ConnectionPool,
    *,
    owner: str | None = None,
    renewers: Sequence[str] = (),
    lifetime_ms: int | None = None,
) -> NewToken:
    """Create a token of the user that is logged in, or of another owner."""
    wanted = None if owner is None else Principal.parse(principal_of(owner))
    others = [Principal.parse(principal_of(name)) for name in renewers]
    request = CreateDelegationTokenRequest(
        renewers=tuple(
            CreatableRenewers(principal_type=one.kind, principal_name=one.name) for one in others
        ),
        max_lifetime_ms=BY_THE_CLUSTER if lifetime_ms is None else lifetime_ms,
        owner_principal_type=None if wanted is None else wanted.kind,
        owner_principal_name=None if wanted is None else wanted.name,
    )
    made: CreateDelegationTokenResponse = await pool.request(
        ApiKey.CREATE_DELEGATION_TOKEN, request, is_repeatable=False
    )
    check(made.error_code, None, "new token")
    token = ListedToken(
        id=made.token_id,
        owner=f"{made.principal_type}:{made.principal_name}",
        requester=f"{made.token_requester_principal_type}:{made.token_requester_principal_name}",
        renewers=tuple(map(str, others)),
        created_ms=made.issue_timestamp_ms,
        expires_ms=made.expiry_timestamp_ms,
        ends_ms=made.max_timestamp_ms,
    )
    return NewToken(token=token, secret=base64.b64encode(made.hmac).decode())


async def list_tokens(pool: ConnectionPool, owners: Sequence[str] = ()) -> list[ListedToken]:
    """The tokens of some owners, or all, that the user may see; those that expire first come
    first."""
    found = [
        ListedToken(
            id=row.token_id,
            owner=f"{row.principal_type}:{row.principal_name}",
            requester=f"{row.token_requester_principal_type}:{row.token_requester_principal_name}",
            renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in row.renewers),
            created_ms=row.issue_timestamp,
            expires_ms=row.expiry_timestamp,
            ends_ms=row.max_timestamp,
        )
        for row in await _visible_tokens(pool, owners)
    ]
    wanted = [principal_of(name) for name in owners]
    # The cluster also lists the tokens that a user created or may renew.
    return sorted(
        (token for token in found if not wanted or token.owner in wanted),
        key=lambda token: (token.expires_ms, token.id),
    )


async def renew_token(pool: ConnectionPool, token_id: str, period_ms: int | None = None) -> int:
    """Let a token expire later; the new time."""
    request = RenewDelegationTokenRequest(
        hmac=await _secret(pool, token_id),
        renew_period_ms=BY_THE_CLUSTER if period_ms is None else period_ms,
    )
    renewed: RenewDelegationTokenResponse = await pool.request(
        ApiKey.RENEW_DELEGATION_TOKEN, request
    )
    check(renewed.error_code, None, f"token {token_id}")
    return renewed.expiry_timestamp_ms


async def expire_token(pool: ConnectionPool, token_id: str, period_ms: int | None = None) -> int:
    """End a token after a period, or remove it at once; the time of its end."""
    request = ExpireDelegationTokenRequest(
        hmac=await _secret(pool, token_id),
        expiry_time_period_ms=AT_ONCE if period_ms is None else period_ms,
    )
    expired: ExpireDelegationTokenResponse = await pool.request(
        ApiKey.EXPIRE_DELEGATION_TOKEN, request, is_repeatable=False
    )
    check(expired.error_code, None, f"token {token_id}")
    return expired.expiry_timestamp_ms


async def _secret(pool: ConnectionPool, token_id: str) -> bytes:
    """The protocol identifies tokens by their secret. Owners and renewers may see it."""
    for row in await _visible_tokens(pool):
        if row.token_id == token_id:
            return row.hmac
    raise NotFound(
        f"there is no token {token_id} that your user may see; `riverrun tokens list` lists them"
    )


async def _visible_tokens(
    pool: ConnectionPool, owners: Sequence[str] = ()
) -> tuple[DescribedDelegationToken, ...]:
    wanted = [Principal.parse(principal_of(name)) for name in owners]
    request = DescribeDelegationTokenRequest(
        owners=tuple(
            DescribeDelegationTokenOwner(principal_type=one.kind, principal_name=one.name)
            for one in wanted
        )
        or None
    )
    response: DescribeDelegationTokenResponse = await pool.request(
        ApiKey.DESCRIBE_DELEGATION_TOKEN, request
    )
    check(response.error_code, None, "tokens")
    return response.tokens
