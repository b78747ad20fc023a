"""The timeline of the cluster: events of the metadata log, newest first, page by page.

The log is read forward, so a page reads a window of records that ends where the last page began.
Each call reads one window, so its work is bounded; a page may be short, and names its continuation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from riverrun.metadata.records import TopicRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicId
from riverrun.server.facts.metadata_events import (
    KINDS,
    MetadataEvent,
    Naming,
    events_of_batch,
)
from riverrun.server.facts.metadata_reader import DecodedBatch, MetadataReader
from riverrun.server.facts.visibility import MetadataVisibility

if TYPE_CHECKING:
    from riverrun.server.dispatch.context import RequestContext
    from riverrun.server.services import NodeServices

RECORDS_PER_CALL_MAX: Final = 2000
EVENTS_MAX: Final = 500
ATTEMPTS_MAX: Final = 3


class TimelineQuery(Struct, frozen=True, kw_only=True):
    before: int | None = None
    """Events below this offset; None: the newest ones."""
    limit: int = 100
    kinds: tuple[str, ...] = ()
    """Empty: all kinds."""
    q: str = ""


class TimelinePage(Struct, frozen=True, kw_only=True):
    items: list[MetadataEvent]
    next: int | None
    """The ``before`` of the next page; None if there are no earlier records."""
    first_offset: int
    """Earlier records are part of a snapshot, and have no time any more."""
    end_offset: int


async def read_timeline(
    services: NodeServices, context: RequestContext, query: TimelineQuery
) -> TimelinePage:
    unknown = [kind for kind in query.kinds if kind not in KINDS]
    if unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no kind {unknown[0]}.")
    reader = MetadataReader(services)
    for _ in range(ATTEMPTS_MAX):
        try:
            return await _read_page(services, context, reader, query)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            # A snapshot has replaced the start of the log meanwhile.
    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The metadata log was just replaced.")


async def _read_page(
    services: NodeServices, context: RequestContext, reader: MetadataReader, query: TimelineQuery
) -> TimelinePage:
    first, last = reader.start_offset, reader.end_offset
    end = last if query.before is None else max(first, min(query.before, last))
    start = max(first, end - RECORDS_PER_CALL_MAX)
    found = [batch async for batch in reader.batches(start, end)]
    naming = naming_for(services, context)
    for batch in found:
        for decoded in batch.records:
            if isinstance(decoded.record, TopicRecord):
                naming.learn(decoded.record)  # newer records name it by its id
    limit = max(1, min(query.limit, EVENTS_MAX))
    events: list[MetadataEvent] = []
    reached = end
    for batch in reversed(found):
        if len(events) >= limit:
            break
        events += _matching(batch, naming, query)
        reached = max(batch.header.base_offset, start)
    else:
        reached = start
    return TimelinePage(
        items=events,
        next=reached if reached > first else None,
        first_offset=first,
        end_offset=last,
    )


def _matching(batch: DecodedBatch, naming: Naming, query: TimelineQuery) -> list[MetadataEvent]:
    """The wanted events of a batch, newest first."""
    wanted = query.q.casefold()
    return [
        event
        for event in reversed(events_of_batch(batch.records, batch.time_ms, naming))
        if (not query.kinds or event.kind in query.kinds)
        and (wanted in event.text.casefold() or wanted in event.subject.casefold())
    ]


def naming_for(services: NodeServices, context: RequestContext) -> Naming:
    image = services.metadata.current

    def name_of(topic: TopicId) -> str | None:
        known = image.topics_by_id.get(topic)
        return None if known is None else known.name

    return Naming(name_of, MetadataVisibility(services, context))
