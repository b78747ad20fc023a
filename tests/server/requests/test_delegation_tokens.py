"""Requests about delegation tokens: who may do what, and which error everybody else gets."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest

from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.metadata.snapshot import records_of
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.settings import DAY_MS
from riverrun.security.acls import WILDCARD, AclOperation, AclPermission, PatternType, ResourceType
from riverrun.security.principal import ANONYMOUS, NODE, Principal
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.forwarding import encode_principal
from riverrun.server.dispatch.router import failure_of
from riverrun.server.requests.envelope import Envelopes
from riverrun.server.security.access import AccessControl
from riverrun.server.security.settings import AuthorizationSettings
from riverrun.server.security.token_expiry import TokenExpiry
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_response, encode_request, encode_response
from riverrun.wire.headers import LENGTH, read_response_header, request_frame
from riverrun.wire.messages.create_delegation_token_request import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from riverrun.wire.messages.describe_delegation_token_request import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from riverrun.wire.messages.envelope_request import EnvelopeRequest
from riverrun.wire.messages.expire_delegation_token_request import ExpireDelegationTokenRequest
from riverrun.wire.messages.renew_delegation_token_request import RenewDelegationTokenRequest
from tests.cluster.fakes import replayed
from tests.server.fakes import FakeClock

from .admin_node import Node

ANN, BOB, EVE = (Principal("User", name) for name in ("ann", "bob", "eve"))
CREATE, RENEW = ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN
EXPIRE, DESCRIBE = ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN
HOUR_MS = DAY_MS // 24


class TokenNode:
    """A controller with access control, and requests of several users."""

    def __init__(self, *, secret_key: str = "key") -> None:
        self.node = Node()
        self.clock = FakeClock()
        services = self.node.services
        services.clock = self.clock
        services.settings.delegation_token = DelegationTokenSettings(secret_key=secret_key)
        services.access = AccessControl(
            AuthorizationSettings(authorizer="riverrun"), lambda: self.node.log.current
        )

    def ask(self, key: ApiKey, request: Any, principal: Principal = ANN, version: int = -1) -> Any:
        """The response, encoded and decoded in a version; the newest one by default."""
        used = ALL_APIS[key].max_version if version < 0 else version
        context = RequestContext(used, 1, "test", "127.0.0.1", "SASL_SSL", 1, principal)

        async def respond() -> Any:
            module = import_module(f"riverrun.server.requests.{key.name.lower()}")
            try:
                found = module.handle(self.node.services, context, request)
                return await found if asyncio.iscoroutine(found) else found
            except KafkaError as error:
                return failure_of(key, getattr(module, "failed", None), request, error)

        return decode_response(key, used, encode_response(key, used, asyncio.run(respond())))

    def create(self, principal: Principal = ANN, **fields: Any) -> Any:
        request = CreateDelegationTokenRequest(**{"renewers": (), "max_lifetime_ms": -1, **fields})
        return self.ask(CREATE, request, principal)

    def renew(self, hmac: bytes, period_ms: int = -1, principal: Principal = ANN) -> Any:
        request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
        return self.ask(RENEW, request, principal)

    def expire(self, hmac: bytes, period_ms: int = -1, principal: Principal = ANN) -> Any:
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
        return self.ask(EXPIRE, request, principal)

    def describe(self, principal: Principal = ANN, *owners: Principal) -> Any:
        wanted = tuple(
            DescribeDelegationTokenOwner(principal_type=one.kind, principal_name=one.name)
            for one in owners
        )
        request = DescribeDelegationTokenRequest(owners=wanted or None)
        return self.ask(DESCRIBE, request, principal)

    def seen_by(self, principal: Principal, *owners: Principal) -> list[str]:
        response = self.describe(principal, *owners)
        assert response.error_code is ErrorCode.NONE
        return [token.token_id for token in response.tokens]

    def allow(
        self, user: Principal, operation: AclOperation, kind: ResourceType, name: str
    ) -> None:
        record = AccessControlEntryRecord(
            id=self.node.services.randomness.uuid(),
            resource_type=kind,
            resource_name=name,
            pattern_type=PatternType.LITERAL,
            principal=str(user),
            host="*",
            operation=operation,
            permission_type=AclPermission.ALLOW,
        )
        log = self.node.log
        log.current = log.newest = replayed(log.newest, [record])


def renewer(principal: Principal) -> CreatableRenewers:
    return CreatableRenewers(principal_type=principal.kind, principal_name=principal.name)


def test_a_token_lives_for_a_day_and_is_renewed_for_a_week() -> None:
    node = TokenNode()
    made = node.create(renewers=(renewer(BOB),))
    issued = node.clock.now_ms()
    assert made.error_code is ErrorCode.NONE
    assert (made.principal_name, made.token_requester_principal_name) == ("ann", "ann")
    times = made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms
    assert times == (issued, issued + DAY_MS, issued + 7 * DAY_MS)
    assert (len(made.token_id), len(made.hmac)) == (22, 64)
    for day in range(1, 8):
        node.clock.now = (issued + day * DAY_MS) / 1000 - 1
        renewed = node.renew(made.hmac, principal=BOB)
        expected = min(node.clock.now_ms() + DAY_MS, made.max_timestamp_ms)
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (ErrorCode.NONE, expected)
    node.clock.now += 2
    assert node.renew(made.hmac).error_code is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert node.expire(made.hmac).error_code is ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_a_period_shortens_a_life_but_does_not_extend_it() -> None:
    node = TokenNode()
    now = node.clock.now_ms()
    short = node.create(max_lifetime_ms=HOUR_MS)
    assert (short.expiry_timestamp_ms, short.max_timestamp_ms) == (now + HOUR_MS, now + HOUR_MS)
    assert node.create(max_lifetime_ms=30 * DAY_MS).max_timestamp_ms == now + 7 * DAY_MS
    made = node.create()
    assert node.renew(made.hmac, HOUR_MS).expiry_timestamp_ms == now + HOUR_MS
    assert node.renew(made.hmac, 3 * DAY_MS).expiry_timestamp_ms == now + DAY_MS
    assert node.expire(made.hmac, 3 * DAY_MS).expiry_timestamp_ms == now + 3 * DAY_MS
    assert node.expire(made.hmac, 30 * DAY_MS).expiry_timestamp_ms == now + 7 * DAY_MS
    assert node.expire(made.hmac, 0).expiry_timestamp_ms == now


def test_a_negative_period_removes_a_token_at_once() -> None:
    node = TokenNode()
    made = node.create()
    removed = node.expire(made.hmac, -5)
    assert (removed.error_code, removed.expiry_timestamp_ms) == (
        ErrorCode.NONE,
        node.clock.now_ms(),
    )
    assert node.seen_by(ANN) == []
    assert node.expire(made.hmac).error_code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert node.renew(made.hmac).error_code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_only_the_owner_and_renewers_change_a_token() -> None:
    node = TokenNode()
    node.allow(EVE, AclOperation.CREATE_TOKENS, ResourceType.USER, "User:ann")
    made = node.create(
        EVE, owner_principal_type="User", owner_principal_name="ann", renewers=(renewer(BOB),)
    )
    assert (made.principal_name, made.token_requester_principal_name) == ("ann", "eve")
    for change in (node.renew, node.expire):
        refused = change(made.hmac, HOUR_MS, EVE)
        assert refused.error_code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        for user in (ANN, BOB):
            assert change(made.hmac, HOUR_MS, user).error_code is ErrorCode.NONE
    assert node.seen_by(EVE) == node.seen_by(ANN) == node.seen_by(BOB) == [made.token_id]


def test_a_token_for_another_user_needs_a_right() -> None:
    node = TokenNode()
    refused = node.create(owner_principal_type="User", owner_principal_name="bob")
    assert refused.error_code is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "ann")
    assert (refused.issue_timestamp_ms, refused.token_id, refused.hmac) == (-1, "", b"")
    node.allow(ANN, AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")
    made = node.create(owner_principal_type="User", owner_principal_name="bob")
    assert made.error_code is ErrorCode.NONE


def test_renewers_must_be_users() -> None:
    refused = TokenNode().create(renewers=(renewer(Principal("Group", "admins")),))
    assert refused.error_code is ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize("kind", [NODE.kind, "Group", ""])
def test_owners_must_be_users(kind: str) -> None:
    """A node may do everything, so a token of one would be worth more than any right."""
    node = TokenNode()
    node.allow(ANN, AclOperation.CREATE_TOKENS, ResourceType.USER, WILDCARD)
    refused = node.create(owner_principal_type=kind, owner_principal_name=NODE.name)
    assert refused.error_code is ErrorCode.INVALID_PRINCIPAL_TYPE
    assert (refused.token_id, refused.hmac) == ("", b"")
    assert node.seen_by(ANN) == []


@pytest.mark.parametrize("principal", [ANONYMOUS, Principal("User", "ann", is_token=True)])
def test_anonymous_clients_and_clients_with_a_token_are_refused(principal: Principal) -> None:
    node = TokenNode()
    made = node.create()
    responses = [
        node.create(principal),
        node.renew(made.hmac, principal=principal),
        node.expire(made.hmac, principal=principal),
        node.describe(principal),
    ]
    expected = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert [one.error_code for one in responses] == [expected] * 4
    assert [one.expiry_timestamp_ms for one in responses[:3]] == [-1] * 3
    assert node.seen_by(ANN) == [made.token_id]


def test_without_a_key_there_are_no_tokens() -> None:
    node = TokenNode(secret_key="")
    responses = [node.create(), node.renew(b"x"), node.expire(b"x"), node.describe()]
    expected = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert [one.error_code for one in responses] == [expected] * 4
    assert [one.expiry_timestamp_ms for one in responses[:3]] == [0] * 3


def test_others_see_a_token_only_with_a_right() -> None:
    node = TokenNode()
    first, second = node.create().token_id, node.create(BOB).token_id
    assert (node.seen_by(ANN), node.seen_by(BOB), node.seen_by(EVE)) == ([first], [second], [])
    node.allow(EVE, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, first)
    assert node.seen_by(EVE) == [first]
    node.allow(EVE, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob")
    assert node.seen_by(EVE) == [first, second]
    assert node.seen_by(EVE, BOB) == [second]
    assert node.seen_by(ANN, BOB) == []


def test_an_empty_list_of_owners_finds_nothing() -> None:
    node = TokenNode()
    node.create()
    response = node.ask(DESCRIBE, DescribeDelegationTokenRequest(owners=()))
    assert (response.error_code, response.tokens) == (ErrorCode.NONE, ())


def test_a_described_token_has_all_its_fields() -> None:
    node = TokenNode()
    made = node.create(renewers=(renewer(BOB), renewer(EVE)))
    (token,) = node.describe().tokens
    assert (token.token_id, token.hmac) == (made.token_id, made.hmac)
    assert [one.principal_name for one in token.renewers] == ["bob", "eve"]
    assert (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp) == (
        made.issue_timestamp_ms,
        made.expiry_timestamp_ms,
        made.max_timestamp_ms,
    )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_old_versions_name_the_requester_as_owner_only(version: int) -> None:
    node = TokenNode()
    request = CreateDelegationTokenRequest(renewers=(), max_lifetime_ms=-1)
    made = node.ask(CREATE, request, version=version)
    assert (made.error_code, made.principal_name) == (ErrorCode.NONE, "ann")
    assert made.token_requester_principal_name == ("ann" if version == 3 else "")


def test_the_stored_record_has_no_secret_and_survives_a_snapshot() -> None:
    node = TokenNode()
    made = node.create(renewers=(renewer(BOB),))
    records = list(records_of(node.node.log.current))
    (token,) = [one for one in records if isinstance(one, DelegationTokenRecord)]
    assert token == DelegationTokenRecord(
        owner="User:ann",
        requester="User:ann",
        renewers=("User:bob",),
        issue_timestamp=made.issue_timestamp_ms,
        max_timestamp=made.max_timestamp_ms,
        expiration_timestamp=made.expiry_timestamp_ms,
        token_id=made.token_id,
    )


def test_the_controller_removes_expired_tokens() -> None:
    node = TokenNode()
    services = node.node.services
    expiry = TokenExpiry(
        services.settings.delegation_token, services.metadata, services.controller, node.clock
    )
    short, long = node.create(max_lifetime_ms=HOUR_MS), node.create()
    asyncio.run(expiry.check())
    assert node.seen_by(ANN) == [short.token_id, long.token_id]
    node.clock.now += HOUR_MS / 1000 + 1
    asyncio.run(expiry.check())
    assert node.seen_by(ANN) == [long.token_id]


def test_a_forwarded_request_keeps_its_principal() -> None:
    node = TokenNode()
    api = ALL_APIS[CREATE]
    request = CreateDelegationTokenRequest(renewers=(), max_lifetime_ms=-1)
    frame = request_frame(api, 3, 7, "client", encode_request(CREATE, 3, request))

    async def forward(principal: Principal) -> Any:
        envelope = EnvelopeRequest(
            request_data=frame[LENGTH.size :],
            request_principal=encode_principal(principal),
            client_host_address=bytes(4),
        )
        context = RequestContext(0, 1, None, "127.0.0.1", "CONTROLLER", 1)
        envelopes = Envelopes(node.node.router)
        response = await envelopes.handle(node.node.services, context, envelope)
        data = response.response_data or b""
        _, at = read_response_header(data, is_flexible=True)
        return decode_response(CREATE, 3, data[at:])

    made = asyncio.run(forward(ANN))
    assert (made.error_code, made.principal_name) == (ErrorCode.NONE, "ann")
    refused = asyncio.run(forward(Principal("User", "ann", is_token=True)))
    assert refused.error_code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
