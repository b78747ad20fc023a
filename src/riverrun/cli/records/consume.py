"""``riverrun consume``: records of topics to standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.completion import group_names, topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    UNREACHABLE,
    USAGE,
    AsJson,
    Bootstrap,
    fail,
)

if TYPE_CHECKING:
    from riverrun.admin.records.formats import Formatter
    from riverrun.admin.records.selection import Start, TopicSelection
    from riverrun.cli.records.decoding import RecordDecoder


ISOLATIONS = ("read_uncommitted", "read_committed")

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", autocompletion=topic_names, show_default=False),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        "-e",
        metavar="REGEX",
        help="Instead of TOPIC: all topics whose whole name matches, also those created later.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        autocompletion=group_names,
        help="Join this group: share the partitions with its members, continue at its committed "
        "offsets, and commit printed records.",
    ),
]
FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        help="Start at the oldest record; with --group, where nothing is committed.",
    ),
]
Offset = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="N|-N|earliest|latest",
        help="Start at this offset; -N means N before the end of each partition.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="DURATION|TIME",
        help="Start at the first record that is not older: 90s, 15m, 1h30m, 2d, or a time such as "
        "2026-11-17T10:00 (local, or with Z or +01:00). With --group, where nothing is committed.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="DURATION|TIME",
        help="Exit before the first record of this age or time. A time in the future is awaited.",
    ),
]
Partitions = Annotated[
    list[int],
    typer.Option(
        "--partition", "-p", min=0, show_default=False, help="Only this partition; may be repeated."
    ),
]
MaxMessages = Annotated[
    int | None, typer.Option("--max-messages", "-n", min=1, help="Exit after this many records.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, metavar="SECONDS", help="Exit when no record arrives for this long."
    ),
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Exit at the current end of all partitions.")
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|json|TEMPLATE",
        help="text: values in lines. json: an object in each line. Or a template of %t topic, "
        "%p partition, %o offset, %T timestamp in ms, %D timestamp in UTC, %k key, %v value, %h "
        "headers, %e leader epoch, %K and %V sizes of key and value, %s size with headers, %%, "
        "\\n, \\t.",
    ),
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        envvar="RIVERRUN_REGISTRY",
        help="Schema registry: print keys and values that name a schema of it as JSON (Avro, "
        "Protobuf, JSON Schema). User and password are in the URL, or as user:password in "
        "RIVERRUN_REGISTRY_USER_INFO. Needs an extra: pip install 'riverrun[registry]'.",
    ),
]
Isolation = Annotated[
    str,
    typer.Option(
        "--isolation",
        metavar="|".join(ISOLATIONS),
        help="read_committed: leave out records of open and aborted transactions.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages on standard error.")]


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topics: Topics = None,
    pattern: Pattern = None,
    group: Group = None,
    from_beginning: FromBeginning = False,
    offset: Offset = None,
    since: Since = None,
    until: Until = None,
    partitions: Partitions = [],  # noqa: B006 (typer reads it and never changes it)
    max_messages: MaxMessages = None,
    timeout: Timeout = None,
    until_end: UntilEnd = False,
    form: Format = "text",
    registry: Registry = None,
    isolation: Isolation = "read_uncommitted",
    quiet: Quiet = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the records of topics as they come, until Ctrl-C.

    Starts with new records unless an option says otherwise. Records of a partition are in order;
    partitions and topics are mixed as they arrive. --json is short for --format json.

    \b
    riverrun consume greetings --from-beginning
    riverrun consume greetings --from-beginning --until-end | wc -l
    riverrun consume orders payments --since 1h
    riverrun consume --pattern 'orders-.*' --since 2026-11-17T10:00 --until 2026-11-17T11:00
    riverrun consume orders --offset -10 --partition 0
    riverrun consume orders --group billing               one of these in each of two terminals
    riverrun consume orders --format '%t %p %o %k %v\\n' --max-messages 5
    riverrun consume orders --isolation read_committed
    riverrun consume orders --json | jq .value
    riverrun consume orders --registry http://127.0.0.1:8081 --json | jq .value.price

    Exits with 0 when it was stopped or has printed the requested records, and with 1 when --timeout
    expired before --max-messages.
    """
    from riverrun.cli.records.consuming import ConsumePlan, ConsumeResult, print_records
    from riverrun.cli.support.session import run
    from riverrun.ports.clock import SystemClock

    if sys.stdout is None:
        fail("standard output is closed", USAGE)
    names = tuple(dict.fromkeys(topics or ()))
    selection = _selection(names, pattern, partitions)
    if isolation not in ISOLATIONS:
        fail(f"--isolation {isolation}: expected {' or '.join(ISOLATIONS)}", USAGE)
    _check_group(group, selection, offset, partitions)
    now_ms = SystemClock().now_ms()
    since_ms, until_ms = _moment("--since", since, now_ms), _moment("--until", until, now_ms)
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        fail(f"--until {until} is not after --since {since}", USAGE)
    plan = ConsumePlan(
        selection=selection,
        group=group,
        start=_start_of(offset, since_ms, from_beginning=from_beginning),
        partitions=tuple(sorted(set(partitions))),
        max_messages=max_messages,
        timeout_s=timeout,
        is_until_end=until_end,
        until_ms=until_ms,
        form_record=_formatter_of("json" if as_json else form),
        is_quiet=quiet,
        is_committed_only=isolation == "read_committed",
        decoder=None if registry is None else _decoder_of(registry, is_quiet=quiet),
    )
    ended = run(bootstrap, lambda pool: print_records(pool, bootstrap, plan), retry=plan.retry)
    if ended.outcome is ConsumeResult.SILENT and max_messages is not None:
        fail(f"{ended.count} of {max_messages} records arrived before the timeout", FAILED)


def _selection(
    topics: tuple[str, ...], pattern: str | None, partitions: list[int]
) -> TopicSelection:
    import re

    from riverrun.admin.records.selection import TopicSelection

    if bool(topics) == (pattern is not None):
        fail("name topics, or use --pattern REGEX", USAGE)
    if partitions and len(topics) != 1:
        fail("--partition is for one topic", USAGE)
    if pattern is None:
        return TopicSelection(topics=topics)
    try:
        return TopicSelection(pattern=re.compile(pattern))
    except re.error as error:
        fail(f"--pattern {pattern}: not a regular expression: {error}", USAGE)


def _check_group(
    group: str | None, selection: TopicSelection, offset: str | None, partitions: list[int]
) -> None:
    """Reject options that a group excludes."""
    if group == "":
        fail("--group is empty", USAGE)
    if group is not None and (offset is not None or partitions):
        topic = f" --topic {selection.topics[0]}" if selection.topics else ""
        fail(
            "--group shares partitions and continues at committed offsets; it excludes "
            "--partition and --offset.\n"
            f"  Move the group with `riverrun groups reset-offsets {group}{topic}`.",
            USAGE,
        )


def _moment(option: str, text: str | None, now_ms: int) -> int | None:
    from riverrun.admin.times import parse_moment

    try:
        return None if text is None else parse_moment(text, now_ms)
    except ValueError as error:
        fail(f"{option} {text}: {error}", USAGE)


def _formatter_of(form: str) -> Formatter:
    """Keys and values are printed byte for byte, but with escapes on a terminal."""
    from riverrun.admin.records.formats import BadInput, as_they_are, escaped, formatter

    try:
        return formatter(form, escaped if sys.stdout.isatty() else as_they_are)
    except BadInput as error:
        fail(str(error), USAGE)


def _decoder_of(url: str, *, is_quiet: bool) -> RecordDecoder:
    """Exits with a message if the registry cannot be used."""
    try:
        from riverrun.cli.records.decoding import RecordDecoder
        from riverrun.registry.rendering import JsonRenderer
    except ImportError as error:
        fail(f"--registry needs {error.name}: pip install 'riverrun[registry]'", USAGE)
    from riverrun.ports.clock import SystemClock
    from riverrun.registry.address import parse_registry
    from riverrun.registry.catalog import RegistryCatalog
    from riverrun.registry.client import RegistryClient
    from riverrun.registry.errors import RegistryUnavailable

    def tell(text: str) -> None:
        if not is_quiet:
            print(f"riverrun: {text}", file=sys.stderr, flush=True)

    try:
        client = RegistryClient(parse_registry(url))
        client.check()
    except ValueError as error:
        fail(f"--registry: {error}", USAGE)
    except RegistryUnavailable as error:
        fail(str(error), UNREACHABLE)
    return RecordDecoder(JsonRenderer(RegistryCatalog(client)), SystemClock(), tell)


def _start_of(offset: str | None, since_ms: int | None, *, from_beginning: bool) -> Start:
    from riverrun.admin.records.selection import Start

    if [offset is not None, since_ms is not None, from_beginning].count(True) > 1:
        fail("use only one of --from-beginning, --offset and --since", USAGE)
    if since_ms is not None:
        return Start.since(since_ms)
    if offset is None:
        return Start.earliest() if from_beginning else Start.latest()
    if offset in ("earliest", "beginning"):
        return Start.earliest()
    if offset in ("latest", "end"):
        return Start.latest()
    try:
        number = int(offset)
    except ValueError:
        fail(f"--offset {offset}: expected a number, earliest or latest", USAGE)
    return Start.before_end(-number) if offset.startswith("-") else Start.at(number)
