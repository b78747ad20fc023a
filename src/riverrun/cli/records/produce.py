"""``riverrun produce``: lines of text or JSON to a topic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.completion import topic_names
from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, USAGE, AsJson, Bootstrap, fail

if TYPE_CHECKING:
    from riverrun.cli.records.producing import ProducePlan

ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
FORMATS = ("text", "json")


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, show_default=False)
]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Read this file instead of standard input.")
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="text: each line is a value. json: each line is an object with value, and "
        "optionally key, headers, timestamp and partition.",
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        help="The text before it in a line is the key. Understands \\t.",
    ),
]
CommonHeaders = Annotated[
    list[str],
    typer.Option(
        "--header",
        "--headers",
        "-H",
        metavar="NAME=VALUE",
        show_default=False,
        help="A header for every record; may be repeated. Without = its value is null.",
    ),
]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        min=0,
        help="Write to this partition. By default the key decides, as in Kafka's own client.",
    ),
]
Codec = Annotated[str, typer.Option("--compression", "-z", metavar="|".join(COMPRESSIONS))]
Acks = Annotated[
    str,
    typer.Option(
        "--acks",
        metavar="0|1|all",
        help="all: stored by all in-sync replicas, each record once. 1: by the leader. 0: do "
        "not wait.",
    ),
]
TransactionalId = Annotated[
    str | None,
    typer.Option(
        "--transactional-id",
        metavar="ID",
        help="Write the whole input in one transaction of this id: all of it becomes visible at "
        "the end, or nothing. It must end within 15 minutes. Ends an open transaction of this id.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no summary on standard error.")
]


def register(app: typer.Typer) -> None:
    app.command("produce")(produce)


def produce(
    topic: Topic,
    file: File = None,
    form: Format = "text",
    key_separator: KeySeparator = None,
    headers: CommonHeaders = [],  # noqa: B006 (typer reads it and never changes it)
    partition: Partition = None,
    compression: Codec = "none",
    acks: Acks = "all",
    transactional_id: TransactionalId = None,
    quiet: Quiet = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write lines of standard input to a topic, in order.

    If the input is an open pipe, it waits for more lines and sends the ones it has. A missing topic
    is created if the cluster allows it. --json prints a summary.

    \b
    echo hello | riverrun produce greetings
    riverrun produce users --key-separator : --file users.txt
    echo '{"key": "k", "value": {"n": 1}, "headers": {"h": "1"}}' | riverrun produce t --format json
    tail -f app.log | riverrun produce logs --compression zstd --header host=web1
    riverrun produce orders --file day.txt --transactional-id nightly-load
    """
    from riverrun.admin.records.formats import BadInput, parse_headers, unescape
    from riverrun.cli.records.producing import ProducePlan
    from riverrun.cli.support.client_config import user_of
    from riverrun.records.compression import Compression

    if form not in FORMATS:
        fail(f"--format {form}: expected {' or '.join(FORMATS)}", USAGE)
    if compression not in COMPRESSIONS:
        fail(f"--compression {compression}: expected one of {', '.join(COMPRESSIONS)}", USAGE)
    if acks not in ACKS:
        fail(f"--acks {acks}: expected 0, 1 or all", USAGE)
    if transactional_id == "":
        fail("--transactional-id is empty", USAGE)
    if transactional_id is not None and ACKS[acks] != ACKS["all"]:
        fail("--transactional-id needs --acks all", USAGE)
    if key_separator is not None and form == "json":
        fail("--key-separator is for text; in JSON the key is a field", USAGE)
    separator = None
    if key_separator is not None:
        separator = unescape(key_separator).encode("utf-8", "surrogateescape")
    if separator == b"":
        fail("--key-separator is empty", USAGE)
    try:
        common_headers = parse_headers(headers)
    except BadInput as error:
        fail(str(error), USAGE)
    plan = ProducePlan(
        topic=topic,
        is_json=form == "json",
        separator=separator,
        headers=common_headers,
        partition=partition,
        compression=Compression[compression.upper()],
        acks=ACKS[acks],
        transactional_id=transactional_id,
        is_quiet=quiet,
        user=user_of(bootstrap),
    )
    _run(bootstrap, plan, file, as_json=as_json)


def _run(bootstrap: str, plan: ProducePlan, file: Path | None, *, as_json: bool) -> None:
    import os

    from riverrun.cli.records.producing import write_lines
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    if file is None or str(file) == "-":
        if sys.stdin is None:
            fail("standard input is closed; use --file", USAGE)
        descriptor = sys.stdin.fileno()
        if os.isatty(descriptor) and not plan.is_quiet:
            print("Each line is a record; end with Ctrl-D.", file=sys.stderr)
    else:
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except OSError as error:
            fail(f"cannot read {file}: {error.strerror}", USAGE)
    summary = run(bootstrap, lambda pool: write_lines(pool, plan, descriptor))
    if as_json:
        print_json(summary.described())
    if summary.failure is not None:
        fail(summary.failure, summary.exit_code)
