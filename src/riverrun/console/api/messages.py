"""Messages of a topic: pages in both directions, one message, the live tail and downloads."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from riverrun.console.api import message_writes
from riverrun.console.messages.cursors import InvalidCursor, decode_cursor, encode_cursor
from riverrun.console.messages.download import lines_of
from riverrun.console.messages.lookup import chosen_partitions, number_of, read_message
from riverrun.console.messages.payloads import (
    WHOLE_PAGE_BYTES_MAX,
    Message,
    NoSchemas,
    PayloadFormat,
    PayloadWriter,
    SchemaDecoder,
)
from riverrun.console.messages.positions import ALL, ranges_at, ranges_from
from riverrun.console.messages.reading import (
    PartitionRange,
    ScanLimits,
    ScannedPage,
    TopicScan,
)
from riverrun.console.messages.schemas import RegistryDecoder, registry_decoder
from riverrun.console.messages.streams import NEWER, OLDER, FoundRecord
from riverrun.console.messages.tail import TopicTail
from riverrun.console.open_streams import LimitedStream, OpenStreams
from riverrun.console.problems import problem
from riverrun.console.routing import INT64_MAX, ApiEndpoint, ClusterRequest

TAG: Final = "messages"
PAGE_MAX: Final = 500
DOWNLOAD_MAX: Final = 1_000_000
RATE_MAX: Final = 500
FILTER_CHARACTERS_MAX: Final = 1000

Start = Literal["latest", "earliest", "offset", "time"]
Direction = Literal["older", "newer"]
Isolation = Literal["read_committed", "read_uncommitted"]
FilterText = Annotated[str, Meta(max_length=FILTER_CHARACTERS_MAX)]


class MessageSelection(Struct, kw_only=True, rename={"from_": "from"}):
    """Which messages. A cursor takes the place of the start."""

    partition: str = ALL
    """A number, or all."""
    from_: Start = "latest"
    offset: Annotated[int, Meta(ge=0)] | None = None
    time_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    direction: Direction | None = None
    """By default older from the latest message, and newer otherwise."""
    filter: FilterText = ""
    """A text in key, value or header. ASCII letters match in any case."""
    isolation: Isolation = "read_committed"
    cursor: str | None = None

    @property
    def is_committed_only(self) -> bool:
        return self.isolation == "read_committed"

    @property
    def way(self) -> Direction:
        default: Direction = OLDER if self.from_ == "latest" else NEWER
        return self.direction or default


class MessageQuery(MessageSelection, kw_only=True, rename={"from_": "from"}):
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 50
    format: PayloadFormat = "auto"
    whole: bool = False
    """Whether a page of large messages ends early instead of showing only the start of each.
    Payloads above 64 KiB are cut in any case."""


class DownloadQuery(MessageSelection, kw_only=True, rename={"from_": "from"}):
    from_: Start = "earliest"
    format: Literal["ndjson", "csv"] = "ndjson"
    limit: Annotated[int, Meta(ge=1, le=DOWNLOAD_MAX)] = 100_000


class TailQuery(Struct, kw_only=True):
    partition: str = ALL
    filter: FilterText = ""
    format: PayloadFormat = "auto"
    rate_max: Annotated[int, Meta(ge=1, le=RATE_MAX)] = 50
    """Messages that are sent in one second. Others are counted."""


class FormatQuery(Struct, kw_only=True):
    format: PayloadFormat = "auto"


class MessagePage(Struct, kw_only=True):
    """Messages in the direction of reading."""

    items: list[Message]
    older: str | None
    """The cursor of the messages before these; null if there are none."""
    newer: str | None
    scanned: int
    """Messages that were read, also those that do not match."""
    scanned_bytes: int
    complete: bool
    """False if a limit ended the search before the page was full. The cursor continues it."""


async def list_messages(request: ClusterRequest) -> MessagePage:
    query: MessageQuery = request.query
    ranges = await selected_ranges(request, query)
    scan = scan_of(request, query, ranges, query.limit)
    limits = ScanLimits(listed_bytes=WHOLE_PAGE_BYTES_MAX if query.whole else None)
    page = await scan.page(query.limit, limits)
    writer = PayloadWriter(query.format, await prepared(request, page.found, query.format))
    return MessagePage(
        items=[writer.message(found) for found in page.found],
        older=_cursor(page, ranges, is_older=True, way=query.way),
        newer=_cursor(page, ranges, is_older=False, way=query.way),
        scanned=page.scanned,
        scanned_bytes=page.scanned_bytes,
        complete=page.is_complete,
    )


def _cursor(
    page: ScannedPage, ranges: dict[int, PartitionRange], *, is_older: bool, way: Direction
) -> str | None:
    positions = page.after if (way == OLDER) == is_older else page.before
    is_at_border = all(
        positions[partition] <= one.start if is_older else positions[partition] >= one.end
        for partition, one in ranges.items()
    )
    return None if is_at_border else encode_cursor(positions)


async def get_message(request: ClusterRequest) -> Message:
    topic = request.params["topic"]
    partition = number_of(request.params["partition"], "partition")
    offset = number_of(request.params["offset"], "offset")
    query: FormatQuery = request.query
    found = await read_message(request.pool, topic, partition, offset)
    schemas = await prepared(request, [found], query.format)
    return PayloadWriter(query.format, schemas, payload_bytes_max=None).message(found)


async def tail_topic(request: ClusterRequest) -> Response:
    topic, query = request.params["topic"], request.query
    partitions = await chosen_partitions(request.pool, topic, query.partition)

    async def render(found: Sequence[FoundRecord]) -> list[Message]:
        writer = PayloadWriter(query.format, await prepared(request, found, query.format))
        return [writer.message(one) for one in found]

    tail = await TopicTail.open(
        request.pool,
        topic,
        partitions,
        text=query.filter,
        rate_max=query.rate_max,
        render=render,
    )
    return streamed(
        request,
        tail.events(),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def download_messages(request: ClusterRequest) -> Response:
    topic, query = request.params["topic"], request.query
    ranges = await selected_ranges(request, query)
    scan = scan_of(request, query, ranges, PAGE_MAX)
    is_csv = query.format == "csv"

    async def prepare(found: Sequence[FoundRecord]) -> SchemaDecoder:
        return await prepared(request, found, "auto")

    lines = lines_of(scan, topic, is_csv=is_csv, limit=query.limit, prepare=prepare)
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in topic)
    return streamed(
        request,
        lines,
        media_type="text/csv; charset=utf-8" if is_csv else "application/x-ndjson",
        headers={
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{name}.{query.format}"',
        },
    )


# Shared by the handlers


async def selected_ranges(
    request: ClusterRequest, query: MessageSelection
) -> dict[int, PartitionRange]:
    topic = request.params["topic"]
    partitions = await chosen_partitions(request.pool, topic, query.partition)
    if query.cursor:
        try:
            positions = decode_cursor(query.cursor)
        except InvalidCursor as error:
            raise problem("invalid", f"{error}.", "Begin again without a cursor.") from None
        # Partitions may have been added since.
        wanted = {index: positions.get(index, 0) for index in partitions}
        return await ranges_at(
            request.pool, topic, wanted, is_committed_only=query.is_committed_only
        )
    if query.from_ == "time" and query.time_ms is None:
        raise problem("invalid", "from=time needs time_ms.")
    if query.from_ == "offset" and query.offset is None:
        raise problem("invalid", "from=offset needs offset.")
    return await ranges_from(
        request.pool,
        topic,
        partitions,
        begin=query.from_,
        offset=query.offset,
        time_ms=query.time_ms,
        direction=query.way,
        is_committed_only=query.is_committed_only,
    )


def scan_of(
    request: ClusterRequest,
    query: MessageSelection,
    ranges: dict[int, PartitionRange],
    page_size: int,
) -> TopicScan:
    return TopicScan(
        request.pool,
        request.params["topic"],
        ranges,
        direction=query.way,
        text=query.filter,
        is_committed_only=query.is_committed_only,
        page_size=page_size,
    )


async def prepared(
    request: ClusterRequest, found: Sequence[FoundRecord], form: str
) -> SchemaDecoder:
    """The payloads that registered schemas describe."""
    if form not in ("auto", "avro") or not found:
        return NoSchemas()

    async def make() -> RegistryDecoder | None:
        return registry_decoder(request.cluster.settings.properties, os.environ)

    decoder = await request.results.get("schema registry", math.inf, make)
    return NoSchemas() if decoder is None else await decoder.prepare(found)


def streamed(
    request: ClusterRequest,
    parts: AsyncIterator[bytes],
    *,
    media_type: str,
    headers: dict[str, str],
) -> Response:
    """A response that is sent as it is made. The number of such responses is limited."""
    streams: OpenStreams = request.raw.app.state.streams
    return LimitedStream(streams, request.access, parts, media_type=media_type, headers=headers)


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "topics/{topic}/messages",
        list_messages,
        "Messages of a topic, page by page in both directions",
        query=MessageQuery,
        response=MessagePage,
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "topics/{topic}/messages/{partition}/{offset}",
        get_message,
        "One message with whole payloads",
        query=FormatQuery,
        response=Message,
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "topics/{topic}/tail",
        tail_topic,
        "New messages as server-sent events: message, sample and end",
        query=TailQuery,
        response=None,
        media_type="text/event-stream",
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "topics/{topic}/export",
        download_messages,
        "Download messages as JSON lines or CSV",
        query=DownloadQuery,
        response=None,
        media_type="application/x-ndjson",
        tag=TAG,
    ),
    *message_writes.ENDPOINTS,
)
