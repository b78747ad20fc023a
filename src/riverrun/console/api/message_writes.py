"""Writing messages: new ones, copies, and dead letters that go back to where they came from."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from riverrun.admin.requests import find_topic
from riverrun.console.cluster_facts import is_internal
from riverrun.console.messages.dead_letters import origin_of, original_of
from riverrun.console.messages.lookup import all_partitions, read_message
from riverrun.console.messages.payloads import PayloadWriter
from riverrun.console.messages.positions import ranges_from
from riverrun.console.messages.reading import ScanLimits, TopicScan
from riverrun.console.messages.streams import NEWER, FoundRecord
from riverrun.console.problems import ApiProblem, as_problem, problem
from riverrun.console.record_writer import OutgoingRecord, RestRecordWriter, WrittenRecord
from riverrun.console.routing import ApiEndpoint, ChangeResult, ClusterRequest
from riverrun.console.shell_words import joined, quoted
from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import SystemClock
from riverrun.records.record import Headers, NewRecord

TAG: Final = "messages"
RECORDS_MAX: Final = 1000
REDRIVEN_MAX: Final = 100_000
REFUSED_TOPICS_MAX: Final = 20
"""Of those that are listed."""
SAMPLE_RECORDS: Final = 5
SAMPLE_BYTES: Final = 300
REDRIVE_LIMITS: Final = ScanLimits(records=1_000_000, seconds=12.0)
COMMAND_RECORDS_MAX: Final = 3
COMMAND_CHARACTERS_MAX: Final = 2000

TextFormat = Literal["text", "json", "base64"]


class NewHeader(Struct, kw_only=True):
    """``value`` is a text; null for a header without a value."""

    name: str
    value: str | None = None
    format: TextFormat = "text"


class NewMessage(Struct, kw_only=True):
    """A message to write. Key and value are texts, or null; with the format json any JSON."""

    key: Any = None
    value: Any = None
    key_format: TextFormat | None = None
    value_format: TextFormat | None = None
    headers: list[NewHeader] = []
    partition: Annotated[int, Meta(ge=0)] | None = None
    """Null: chosen by the key."""


class ProduceBody(Struct, kw_only=True):
    """At most 1,000 messages."""

    records: Annotated[list[NewMessage], Meta(min_length=1, max_length=RECORDS_MAX)]
    dry_run: bool = False


class MessagePlace(Struct, kw_only=True):
    partition: int
    offset: int


class WrittenRecords(ChangeResult, kw_only=True):
    """Where each message is, in the order of the request. Empty in a dry run."""

    offsets: list[MessagePlace]


class ResendBody(Struct, kw_only=True):
    """One message, by its place, and the topic that gets a copy."""

    partition: Annotated[int, Meta(ge=0)]
    offset: Annotated[int, Meta(ge=0)]
    to: str
    dry_run: bool = False


class RedriveBody(Struct, kw_only=True):
    """Write the dead letters of a topic again, oldest first."""

    to: str | None = None
    """Null: the topic that each dead letter names."""
    targets: list[str] | None = None
    """The topics that may get records. The author of a dead letter chooses the topic in a header,
    so this is required without ``to``. A dry run lists the topics."""
    limit: Annotated[int, Meta(ge=1, le=REDRIVEN_MAX)] = 1000
    filter: Annotated[str, Meta(max_length=1000)] | None = None
    dry_run: bool = False


class RedrivenSample(Struct, kw_only=True):
    partition: int
    offset: int
    to: str
    key: str | None
    value: str | None


class RedriveResult(ChangeResult, kw_only=True):
    """``skipped`` records name no topic, or the topic of the dead letters."""

    records: int
    to: str | None
    """The topic, if there is only one."""
    topics: dict[str, int]
    """Records by topic."""
    refused: dict[str, int]
    """Records by topic that are not written, because the topic is internal, does not exist or is
    not among ``targets``. At most 20 topics."""
    refused_records: int
    skipped: int
    sample: list[RedrivenSample]
    complete: bool
    """False if there are more dead letters than the limit."""


async def produce_messages(request: ClusterRequest) -> WrittenRecords:
    body: ProduceBody = request.body
    topic = request.params["topic"]
    partitions = await all_partitions(request.pool, topic)
    now_ms = SystemClock().now_ms()
    records = [
        OutgoingRecord(record=new_record(message, place, now_ms), partition=message.partition)
        for place, message in enumerate(body.records)
    ]
    for message in body.records:
        if message.partition is not None and message.partition not in partitions:
            raise problem("invalid", f"Topic {topic} has no partition {message.partition}.")
    offsets = [] if body.dry_run else await written(request, topic, partitions, records)
    return WrittenRecords(
        dry_run=body.dry_run, command=produce_command(request, topic, body), offsets=offsets
    )


async def resend_message(request: ClusterRequest) -> WrittenRecords:
    body: ResendBody = request.body
    topic = request.params["topic"]
    found = await read_message(request.pool, topic, body.partition, body.offset)
    partitions = await all_partitions(request.pool, body.to)
    record = found.record
    copy = NewRecord(record.value, record.key, SystemClock().now_ms(), record.headers)
    offsets: list[MessagePlace] = []
    if not body.dry_run:
        offsets = await written(request, body.to, partitions, [OutgoingRecord(record=copy)])
    place = ("--partition", str(body.partition), "--offset", str(body.offset))
    read = request.cluster.command("consume", topic, *place, "--max-messages", "1", "--json")
    return WrittenRecords(
        dry_run=body.dry_run, command=piped(read, request, body.to), offsets=offsets
    )


async def redrive_topic(request: ClusterRequest) -> RedriveResult:
    body: RedriveBody = request.body
    topic = request.params["topic"]
    if body.to is None and body.targets is None and not body.dry_run:
        raise problem(
            "invalid",
            "The request does not name the topics that may get records.",
            "Add targets with the topics that the dry run lists, or a topic as to.",
        )
    targets = await possible_targets(request, body)
    found, is_complete = await dead_letters(request, topic, body)
    by_topic: dict[str, list[FoundRecord]] = {}
    refused: dict[str, int] = {}
    skipped = 0
    for one in found:
        to = body.to or origin_of(one.record)
        if to is None or to == topic:
            skipped += 1
        elif to in targets:
            by_topic.setdefault(to, []).append(one)
        else:
            refused[to] = refused.get(to, 0) + 1
    if not body.dry_run:
        now_ms = SystemClock().now_ms()
        for to, letters in by_topic.items():
            records = [OutgoingRecord(record=original_of(one.record, now_ms)) for one in letters]
            await written(request, to, targets[to], records)
    only = next(iter(by_topic)) if len(by_topic) == 1 else body.to
    words = ["consume", topic, "--from-beginning", "--until-end", "--json"]
    words += ["--isolation", "read_committed", "--max-messages", str(body.limit)]
    read = request.cluster.command(*words)
    if body.filter:
        read += f" | grep -iF {quoted(body.filter)}"
    return RedriveResult(
        dry_run=body.dry_run,
        command=piped(read, request, only or "TOPIC"),
        records=sum(map(len, by_topic.values())),
        to=only,
        topics={to: len(letters) for to, letters in by_topic.items()},
        refused=dict(islice(refused.items(), REFUSED_TOPICS_MAX)),
        refused_records=sum(refused.values()),
        skipped=skipped,
        sample=sample_of(by_topic),
        complete=is_complete,
    )


async def possible_targets(request: ClusterRequest, body: RedriveBody) -> dict[str, list[int]]:
    """The topics that may get records, with their partitions. Internal topics never do."""
    if body.to is not None:
        if is_internal(await find_topic(request.pool, body.to)):
            raise problem("forbidden", f"The topic {body.to} is internal.", "Name another topic.")
        return {body.to: await all_partitions(request.pool, body.to)}
    confirmed = None if body.targets is None else frozenset(body.targets)
    return {
        row.name: sorted(each.partition_index for each in row.partitions)
        for row in (await request.metadata()).topics
        if row.name is not None
        and row.error_code is ErrorCode.NONE
        and not is_internal(row)
        and (confirmed is None or row.name in confirmed)
    }


async def dead_letters(
    request: ClusterRequest, topic: str, body: RedriveBody
) -> tuple[list[FoundRecord], bool]:
    """The dead letters to write again, and whether these are all of them."""
    partitions = await all_partitions(request.pool, topic)
    ranges = await ranges_from(
        request.pool,
        topic,
        partitions,
        begin="earliest",
        offset=None,
        time_ms=None,
        direction=NEWER,
        is_committed_only=True,
    )
    scan = TopicScan(
        request.pool,
        topic,
        ranges,
        direction=NEWER,
        text=body.filter or "",
        page_size=min(body.limit, RECORDS_MAX),
    )
    page = await scan.page(body.limit, REDRIVE_LIMITS)
    if not page.is_complete and not body.dry_run:
        # A part of them would be written twice by the next attempt.
        raise problem(
            "too_many",
            f"{page.scanned:,} records were read, and there are more.",
            f"Lower the limit to {max(1, len(page.found)):,}, or trim the topic afterwards and "
            "continue.",
        )
    return page.found, page.is_complete and len(page.found) < body.limit


def sample_of(by_topic: dict[str, list[FoundRecord]]) -> list[RedrivenSample]:
    writer = PayloadWriter("auto", payload_bytes_max=SAMPLE_BYTES)
    rows = [(to, one) for to, letters in by_topic.items() for one in letters[:SAMPLE_RECORDS]]
    found = []
    for to, one in rows[:SAMPLE_RECORDS]:
        key, value = writer.payload(one.record.key), writer.payload(one.record.value)
        found.append(
            RedrivenSample(
                partition=one.partition,
                offset=one.record.offset,
                to=to,
                key=None if key is None else key.text,
                value=None if value is None else value.text,
            )
        )
    return found


async def written(
    request: ClusterRequest,
    topic: str,
    partitions: Sequence[int],
    records: Sequence[OutgoingRecord],
) -> list[MessagePlace]:
    """Write records. The message of an ``ApiProblem`` has the number that was written."""
    outcomes = await RestRecordWriter(request.pool, topic, partitions).write(records)
    places = [
        MessagePlace(partition=one.partition, offset=one.offset)
        for one in outcomes
        if isinstance(one, WrittenRecord)
    ]
    for outcome in outcomes:
        if not isinstance(outcome, WrittenRecord):
            failure = as_problem(outcome)
            text = f"{len(places):,} of {len(records):,} records were written to {topic}."
            raise ApiProblem(
                failure.status, failure.code, f"{text} {failure.message}", failure.remedy
            )
    return places


# Texts to bytes


def new_record(message: NewMessage, place: int, now_ms: int) -> NewRecord:
    headers: Headers = tuple(
        (header.name, _bytes(header.value, header.format, f"header {header.name}", place))
        for header in message.headers
    )
    return NewRecord(
        value=_bytes(message.value, message.value_format, "value", place),
        key=_bytes(message.key, message.key_format, "key", place),
        timestamp=now_ms,
        headers=headers,
    )


def _bytes(value: Any, form: TextFormat | None, part: str, place: int) -> bytes | None:
    about = f"The {part} of record {place + 1}"
    if value is None:
        return None
    if form == "json":
        if not isinstance(value, str):
            return msgspec.json.encode(value)
        text = value.encode()
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise problem("invalid", f"{about} is not JSON: {error}.") from None
        return text
    if not isinstance(value, str):
        raise problem("invalid", f"{about} is not a text.", "Use the format json for other values.")
    if form == "base64":
        try:
            return base64.b64decode(value.strip(), validate=True)
        except (binascii.Error, ValueError):
            raise problem("invalid", f"{about} is not base64.") from None
    return value.encode()


# Commands


def produce_command(request: ClusterRequest, topic: str, body: ProduceBody) -> str:
    command = request.cluster.command("produce", topic, "--format", "json")
    rows = [_row(message) for message in body.records[:COMMAND_RECORDS_MAX]]
    lines = [msgspec.json.encode(row).decode() for row in rows]
    is_short = len(body.records) <= COMMAND_RECORDS_MAX
    if not is_short or sum(map(len, lines)) > COMMAND_CHARACTERS_MAX:
        return f"{command} --file records.ndjson"
    return f"printf '%s\\n' {joined(lines)} | {command}"


def _row(message: NewMessage) -> dict[str, Any]:
    """The message as ``riverrun produce --format json`` reads it."""
    row: dict[str, Any] = {}
    if message.partition is not None:
        row["partition"] = message.partition
    row |= _field("key", message.key, message.key_format)
    row |= _field("value", message.value, message.value_format)
    if message.headers:
        row["headers"] = [
            {"name": header.name, **_field("value", header.value, header.format)}
            for header in message.headers
        ]
    return row


def _field(name: str, value: Any, form: TextFormat | None) -> dict[str, Any]:
    if value is None or form != "base64":
        return {name: value}
    return {f"{name}_base64": value}


def piped(read: str, request: ClusterRequest, to: str) -> str:
    """Read, drop the place of the record, and write it to a topic."""
    write = request.cluster.command("produce", to, "--format", "json")
    return f"{read} | jq -c 'del(.partition, .offset, .timestamp)' | {write}"


ENDPOINTS: Final = (
    ApiEndpoint(
        "POST",
        "topics/{topic}/messages",
        produce_messages,
        "Write messages",
        body=ProduceBody,
        response=WrittenRecords,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "topics/{topic}/resend",
        resend_message,
        "Write a copy of a message to a topic",
        body=ResendBody,
        response=WrittenRecords,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "topics/{topic}/redrive",
        redrive_topic,
        "Write dead letters again to the topics that they came from",
        body=RedriveBody,
        response=RedriveResult,
        tag=TAG,
    ),
)
