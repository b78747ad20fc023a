"""DescribeQuotaUse response: the rates of clients with quotas, those nearest to their limit first.

``user`` or ``client_id`` is empty if the quota does not depend on it.
"""

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Field, Layouts


class MeasuredUse(Struct, frozen=True, kw_only=True):
    key: str
    user: str
    client_id: str
    rate: float


class DescribeQuotaUseResponse(Struct, frozen=True, kw_only=True):
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    uses: tuple[MeasuredUse, ...] = ()


MESSAGE = DescribeQuotaUseResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "MeasuredUse": (
        Field("key", "string", 0, 0),
        Field("user", "string", 0, 0),
        Field("client_id", "string", 0, 0),
        Field("rate", "float64", 0, 0),
    ),
    "DescribeQuotaUseResponse": (
        Field("error_code", "error_code", 0, 0),
        Field("error_message", "string", 0, 0, is_nullable=True),
        Field("uses", "[]MeasuredUse", 0, 0),
    ),
}
