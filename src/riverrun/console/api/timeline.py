"""The timeline of the cluster, from the metadata log; and the metadata at two moments compared."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from riverrun.console.node_queries import ask_one
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest

TAG: Final = "timeline"
KINDS: Final = (
    "election", "isr", "topic", "config", "broker", "acl", "user", "quota", "move", "feature",
    "quorum", "other",
)  # fmt: skip
SEARCH_SECONDS_MAX: Final = 3.0
"""A page with filters reads older records until it is full, or for this long."""


class TimelinePageQuery(Struct, kw_only=True):
    before: Annotated[int, Meta(ge=0)] | None = None
    """Only events below this offset of the metadata log."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    kinds: str = ""
    """Names, separated by commas. Empty: all."""
    q: str = ""
    """A text in the event."""


class TimelineEvent(Struct, kw_only=True):
    """A change of the cluster. ``records`` of the metadata log describe it."""

    offset: int
    time_ms: int
    kind: str
    text: str
    subject: str
    details: dict[str, Any]
    records: int = 1


class TimelineItems(Struct, kw_only=True):
    """Events, newest first."""

    items: list[TimelineEvent]
    next: int | None
    """The ``before`` of older events; null if there are none."""
    first_offset: int
    """Earlier records were replaced by a snapshot."""
    end_offset: int


class MomentsQuery(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets of the metadata log, or times in ms."""

    from_: Annotated[int, Meta(ge=0)]
    to: Annotated[int, Meta(ge=0)]


class TimelineChange(Struct, kw_only=True):
    """``before`` is null for what is new, ``after`` for what is gone."""

    kind: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class TimelineDifference(Struct, kw_only=True):
    from_offset: int
    to_offset: int
    first_offset: int
    """The earliest offset that can be compared."""
    changes: list[TimelineChange]
    total: int
    """Changes, also those that are not listed."""


async def get_timeline(request: ClusterRequest) -> TimelineItems:
    query: TimelinePageQuery = request.query
    kinds = [kind.strip() for kind in query.kinds.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise problem(
                "invalid", f"There is no kind {kind[:50]}.", f"Kinds are {', '.join(KINDS)}."
            )
    asked = {"before": query.before, "limit": query.limit, "kinds": kinds, "q": query.q}
    loop = asyncio.get_running_loop()
    end_at = loop.time() + SEARCH_SECONDS_MAX
    found: TimelineItems = await ask_one(request, None, "timeline", asked, TimelineItems)
    while found.next is not None and len(found.items) < query.limit and loop.time() < end_at:
        asked |= {"before": found.next, "limit": query.limit - len(found.items)}
        older = await ask_one(request, None, "timeline", asked, TimelineItems)
        found.items += older.items
        found.next, found.first_offset = older.next, older.first_offset
    return found


async def compare_moments(request: ClusterRequest) -> TimelineDifference:
    query: MomentsQuery = request.query
    asked = {"from": query.from_, "to": query.to}
    return await ask_one(request, None, "diff", asked, TimelineDifference)


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "timeline",
        get_timeline,
        "Events of the metadata log, newest first",
        query=TimelinePageQuery,
        response=TimelineItems,
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "timeline/diff",
        compare_moments,
        "What differs between two moments",
        query=MomentsQuery,
        response=TimelineDifference,
        tag=TAG,
    ),
)
