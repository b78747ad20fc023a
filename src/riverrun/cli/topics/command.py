"""``riverrun topics``: list, create, describe, alter, trim and delete topics."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.balance import topic_command
from riverrun.cli.balance.command import Throttle
from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.completion import topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    Wide,
    Yes,
    confirm,
    fail,
    parse_settings,
    parse_topics,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.admin.groups.admin import Target
    from riverrun.admin.topics.trim import PartitionTrim
    from riverrun.client.pool import ConnectionPool

TIMEOUT_MS = 30_000
BROKER_DEFAULT = -1

Names = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC", autocompletion=topic_names, show_default=False),
]
Name = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, show_default=False)
]
Configs = Annotated[
    list[str],
    typer.Option(
        "--config",
        metavar="NAME=VALUE",
        show_default=False,
        help="A setting of the topic, such as retention.ms=3600000; may be repeated.",
    ),
]


def register(app: typer.Typer) -> None:
    topics = CommandApp(help="List, create, describe, alter, trim and delete topics.")
    topics.command("list")(list_topics)
    topics.command("create")(create)
    topics.command("describe")(describe)
    topics.command("alter")(alter)
    topic_command.register(topics)
    topics.command("trim")(trim)
    topics.command("delete")(delete)
    app.add_typer(topics, name="topics")


def list_topics(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN",
            autocompletion=topic_names,
            show_default=False,
            help="Regular expression for the whole name, such as 'orders.*'.",
        ),
    ] = None,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    rates: Annotated[
        bool,
        typer.Option("--rates", help="Add records/s and bytes/s, measured during one second."),
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    watch: Watch = False,
) -> None:
    """List topics with their partitions, replicas, records and size.

    Records are the end offsets minus the start offsets; a compacted topic has fewer. The size is
    that of one replica of each partition, in bytes in a pipe. - if a leader does not respond.

    \b
    riverrun topics list
    riverrun topics list 'orders.*' --rates
    riverrun topics list --no-headers | cut -f1     only the names
    riverrun topics list --json | jq .              for scripts
    """
    from riverrun.admin.topics import listing
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    compiled = [_pattern(text) for text in patterns or []]
    empty = "There are no topics yet. Create one with `riverrun topics create NAME`."
    if compiled:
        empty = f"No topic matches {' '.join(patterns or [])}."

    def once() -> None:
        found = run(
            bootstrap,
            lambda pool: listing.list_topics(
                pool, compiled, with_internal=internal, with_rates=rates
            ),
        )
        for node in found.silent:
            text = f"node {node} does not respond: sizes may be missing"
            print(f"riverrun: {text}", file=sys.stderr)
        if as_json:
            print_json([topic.described() for topic in found.topics])
            return
        table = listing.topics_table(found.topics, with_rates=rates, empty=empty)
        print_tables([table], Layout(has_headings=not no_headers))

    show(once, is_watched=watch)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        hint = f"; did you mean {text.replace('*', '.*')!r}?" if text.startswith("*") else ""
        fail(f"{text}: not a regular expression: {error}{hint}", USAGE)


def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            help="Number of partitions; default: num.partitions of the cluster.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "--replicas",
            "-r",
            metavar="N",
            min=1,
            help="Replicas of each partition; default: default.replication.factor of the cluster.",
        ),
    ] = None,
    configs: Configs = [],  # noqa: B006 (typer reads it and never changes it)
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show where the replicas would go and why; create nothing."),
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Create topics.

    \b
    riverrun topics create events
    riverrun topics create events --partitions 12 --replication-factor 3
    riverrun topics create latest --config cleanup.policy=compact
    riverrun topics create events --partitions 12 --dry-run
    """
    from riverrun.admin.tables import counted
    from riverrun.admin.topics.admin import create_topics
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run
    from riverrun.cli.topics.creation import print_preview, topic_setting_names, warn_of_factors

    settings = parse_settings(configs, "--config")
    if dry_run:
        shape = (partitions or BROKER_DEFAULT, replication_factor or BROKER_DEFAULT)
        print_preview(
            names, shape, settings, bootstrap, as_json=as_json, has_headings=not no_headers
        )
        return
    made = run(
        bootstrap,
        lambda pool: create_topics(
            pool,
            names,
            partitions=partitions or BROKER_DEFAULT,
            replication_factor=replication_factor or BROKER_DEFAULT,
            settings=settings,
            may_exist=if_not_exists,
            setting_names=topic_setting_names,
        ),
    )
    factors = {row.name: row.replication_factor for row in made.created if row.is_new}
    warn_of_factors(factors, settings)
    if as_json:
        print_json([row.described() for row in made.created])
    else:
        for row in made.created:
            factor = f"replication factor {row.replication_factor}"
            size = f"{counted(row.partitions, 'partition')}, {factor}"
            print(f"Created {row.name} with {size}." if row.is_new else f"{row.name} exists.")
    if made.failures:
        fail("\n".join(made.failures), FAILED)


def describe(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", autocompletion=topic_names, show_default=False),
    ] = None,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Include settings with their default value.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Without names: include internal topics.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    wide: Wide = False,
    watch: Watch = False,
) -> None:
    """Show partitions, offsets and changed settings.

    A partition has its leader, replicas, in-sync replicas, offsets, size and lag: the records that
    each follower lacks, as 2:0 3:1500, with ? for a node that does not respond. Without names, all
    topics. In a pipe each row starts with its kind: topic, partition or setting. --wide adds the
    id of the topic.

    \b
    riverrun topics describe events
    riverrun topics describe events --all-settings
    riverrun topics describe events --watch
    riverrun topics describe events | grep ^partition | cut -f2-4
    """
    from riverrun.admin.topics.report import describe_topics, tables_of
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    layout = Layout(has_headings=not no_headers, is_wide=wide)

    def once() -> None:
        topics = run(
            bootstrap,
            lambda pool: describe_topics(
                pool, names or None, all_settings=all_settings, internal=internal
            ),
        )
        if as_json:
            print_json([topic.described() for topic in topics])
            return
        for place, topic in enumerate(topics):
            if place and is_terminal():
                print()
            print_tables(tables_of(topic, is_terminal=is_terminal(), is_wide=wide), layout)

    show(once, is_watched=watch)


def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            help="The new number of partitions; it can only grow.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            metavar="N",
            min=1,
            max=32767,
            help="The new number of replicas of each partition. Waits until they are copied.",
        ),
    ] = None,
    throttle: Throttle = None,
    configs: Configs = [],  # noqa: B006 (typer reads it and never changes it)
    delete_configs: Annotated[
        list[str],
        typer.Option(
            "--delete-config",
            metavar="NAME",
            show_default=False,
            help="Restore the default of a setting; may be repeated.",
        ),
    ] = [],  # noqa: B006 (as above)
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the change, show its moves, do nothing.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings or replication factor, or add partitions.

    Settings and partitions are validated before anything changes. Adding partitions changes which
    partition a key maps to.

    \b
    riverrun topics alter events --replicas 3 --throttle 50MB
    riverrun topics alter events --config retention.ms=86400000
    riverrun topics alter events --delete-config retention.ms
    riverrun topics alter events --partitions 24
    """
    from riverrun.admin.topics.admin import alter_topic, replication_factor_of
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run
    from riverrun.cli.topics.creation import topic_setting_names, warn_of_factors

    changes: dict[str, str | None] = {**parse_settings(configs, "--config")}
    if both := changes.keys() & {*delete_configs}:
        fail(f"{min(both)} is both in --config and in --delete-config", USAGE)
    changes |= dict.fromkeys(delete_configs)
    if partitions is None and replicas is None and not changes:
        fail("nothing to change: use --partitions, --replicas, --config or --delete-config", USAGE)
    if partitions is not None or changes:
        run(
            bootstrap,
            lambda pool: alter_topic(
                pool,
                name,
                partitions=partitions,
                settings=changes,
                validate_only=dry_run,
                setting_names=topic_setting_names,
            ),
        )
        factor = replicas or run(bootstrap, lambda pool: replication_factor_of(pool, name))
        warn_of_factors({name: factor}, changes)
    plan: dict[str, object] | None = None
    if replicas is not None:
        plan = topic_command.change_replicas(
            bootstrap, name, replicas, throttle, is_dry_run=dry_run, is_quiet=as_json
        )
    if as_json:
        described = {"partitions": partitions, "replicas": replicas, "settings": changes}
        print_json({"name": name, **described, "plan": plan, "executed": not dry_run})
        return
    if dry_run:
        print(f"{name}: the change is valid; nothing was changed.")
        return
    for setting, value in changes.items():
        print(f"{name}: {setting} " + ("is the default again." if value is None else f"= {value}"))
    if partitions is not None:
        print(f"{name}: {partitions} partitions")


def trim(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC[:0,1]",
            autocompletion=topic_names,
            show_default=False,
            help="A topic, or some of its partitions.",
        ),
    ],
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="OFFSET|TIME|end",
            show_default=False,
            help="Delete the records before this offset of each partition, before the first record "
            "at or after this time (2025-01-31T12:00, local or with a zone; 2d: two days ago), or "
            "all.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Delete the oldest records of a topic. Asks on a terminal; elsewhere it needs --yes.

    The topic and its newer records stay. Deleted records cannot be read again; the disk space is
    freed when whole segments are deleted. Topics that are only compacted cannot be trimmed.

    \b
    riverrun topics trim events --before 2025-01-31T12:00 --dry-run
    riverrun topics trim events --before 2d
    riverrun topics trim events:0 --before 150000 --yes
    riverrun topics trim events --before end
    """
    from riverrun.admin.tables import counted
    from riverrun.admin.topics.trim import beyond_end, delete_records, plan_trim, trims_table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    wanted, target = parse_topics(topics, ""), _before(before)
    trims = run(bootstrap, lambda pool: plan_trim(pool, wanted, target))
    if (refusal := beyond_end(trims, target)) is not None:
        fail(refusal, FAILED)
    count = sum(one.records for one in trims)
    if not as_json:
        print_tables([trims_table(trims)], Layout(has_headings=not no_headers))
    if count and not dry_run:
        question = f"Delete {counted(count, 'record')} of {', '.join(wanted)}?"
        confirm(question, is_agreed=yes)
        trims = run(bootstrap, lambda pool: delete_records(pool, trims))
    if as_json:
        rows = [one.described() for one in trims]
        print_json({"executed": not dry_run, "partitions": rows})
    else:
        _note_trim(trims, is_dry_run=dry_run)
    failures = [f"{one.partition}: {one.failure}" for one in trims if one.failure is not None]
    if failures:
        fail("\n".join(failures), FAILED)


def _note_trim(trims: list[PartitionTrim], *, is_dry_run: bool) -> None:
    from riverrun.admin.tables import counted
    from riverrun.cli.support.output import is_terminal

    count = sum(one.records for one in trims)
    if not is_terminal():
        return
    if not count:
        print("\nThere is nothing to delete.")
    elif is_dry_run:
        print("\nNothing was deleted. Repeat it without --dry-run to delete these records.")
    else:
        print(f"Deleted {counted(count, 'record')}.")


def _before(text: str) -> Target:
    from riverrun.admin.groups.admin import Target
    from riverrun.admin.times import parse_moment
    from riverrun.client.partitions import LATEST

    if text == "end":
        return Target(time=LATEST)
    if text.isdigit():
        return Target(offset=int(text))
    try:
        return Target(time=parse_moment(text, time.time_ns() // 1_000_000))
    except ValueError:
        fail(
            f"--before {text}: expected an offset, a time such as 2025-01-31T12:00, a duration "
            "such as 2d, or end",
            USAGE,
        )


def delete(
    names: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records. Asks on a terminal; elsewhere it needs --yes.

    \b
    riverrun topics delete events
    riverrun topics delete events clicks --yes
    """
    from riverrun.admin.requests import find_topic, in_words
    from riverrun.admin.tables import counted
    from riverrun.admin.topics.admin import delete_topics
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    async def look(pool: ConnectionPool) -> int:
        found = [await find_topic(pool, name, may_be_created=False) for name in names]
        return sum(len(topic.partitions) for topic in found)

    if not yes:
        count = counted(run(bootstrap, look), "partition")
        confirm(f"Delete {', '.join(names)} ({count}) and all records?", is_agreed=False)
    failures = run(bootstrap, lambda pool: delete_topics(pool, names))
    gone = [name for name in names if name not in failures]
    if as_json:
        print_json({"deleted": gone})
    else:
        for name in gone:
            print(f"Deleted {name}.")
    if failures:
        fail("\n".join(in_words(error) for error in failures.values()), FAILED)
