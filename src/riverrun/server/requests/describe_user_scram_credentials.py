"""DescribeUserScramCredentials, version 0: users and their mechanisms, from this node's image."""

from __future__ import annotations

from riverrun.cluster.security.scram_users import describe_user_scram_credentials
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.describe_user_scram_credentials_request import (
    DescribeUserScramCredentialsRequest,
)
from riverrun.wire.messages.describe_user_scram_credentials_response import (
    DescribeUserScramCredentialsResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    return describe_user_scram_credentials(services.metadata.current, request)
