"""DescribeAcls, versions 1 to 3: the rules that match a filter, from this node's image.

SECURITY_DISABLED without an authorizer, as MirrorMaker expects.
"""

from __future__ import annotations

from riverrun.cluster.security.access_rules import describe_acls
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import check_enabled
from riverrun.server.services import NodeServices
from riverrun.wire.messages.describe_acls_request import DescribeAclsRequest
from riverrun.wire.messages.describe_acls_response import DescribeAclsResponse


def handle(
    services: NodeServices, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    check_enabled(services.access)
    return describe_acls(services.metadata.current, request)
