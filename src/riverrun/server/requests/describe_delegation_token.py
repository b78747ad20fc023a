"""DescribeDelegationToken, versions 1 to 3: the tokens that a user may see (KIP-48, KIP-373).

Owners, creators and renewers see a token. Others need the right Describe on the token, or
DescribeTokens on its owner.
"""

from __future__ import annotations

from riverrun.cluster.security.delegation_tokens import describe_tokens
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.token_requests import check_token_request
from riverrun.server.services import NodeServices
from riverrun.wire.messages.describe_delegation_token_request import DescribeDelegationTokenRequest
from riverrun.wire.messages.describe_delegation_token_response import (
    DescribeDelegationTokenResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    check_token_request(context)
    allows = services.access.allows

    def may_see(token: DelegationTokenRecord) -> bool:
        return allows(
            context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
        ) or allows(context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)

    return describe_tokens(
        services.metadata.current,
        request,
        context.principal,
        services.settings.delegation_token,
        may_see,
    )
