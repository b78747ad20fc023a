"""DescribeNode request: facts that only one node knows, for the console.

``query`` is a JSON object; an empty text means no options.
"""

from msgspec import Struct

from riverrun.wire.layout import Field, Layouts


class DescribeNodeRequest(Struct, frozen=True, kw_only=True):
    subject: str
    query: str = ""


MESSAGE = DescribeNodeRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "DescribeNodeRequest": (
        Field("subject", "string", 0, 0),
        Field("query", "string", 0, 0),
    ),
}
