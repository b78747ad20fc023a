"""DescribeQuotaUse request: what clients with quotas use on the node that gets it."""

from msgspec import Struct

from riverrun.wire.layout import Layouts


class DescribeQuotaUseRequest(Struct, frozen=True, kw_only=True):
    pass


MESSAGE = DescribeQuotaUseRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {"DescribeQuotaUseRequest": ()}
