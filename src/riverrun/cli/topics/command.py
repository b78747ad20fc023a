"""``riverrun topics``: list, create, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.completion import topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    USAGE,
    AsJson,
    Bootstrap,
    confirm,
    fail,
    parse_settings,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
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
    topics = typer.Typer(
        help="List, create, describe, alter and delete topics.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    topics.command("list")(list_topics)
    topics.command("create")(create)
    topics.command("describe")(describe)
    topics.command("alter")(alter)
    topics.command("delete")(delete)
    app.add_typer(topics, name="topics")


def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List topics with their partitions and replication factor.

    \b
    riverrun topics list
    riverrun topics list | cut -f1            only the names
    riverrun topics list --json | jq .        for scripts
    """
    from riverrun.cli.support.output import Table, print_json, print_tables
    from riverrun.cli.support.session import run

    async def ask(pool: ConnectionPool) -> list[tuple[str, int, int]]:
        answer = await pool.metadata(None)
        return sorted(
            (topic.name or "", len(topic.partitions), _replication_factor(topic.partitions))
            for topic in answer.topics
            if internal or not topic.is_internal
        )

    rows = run(bootstrap, ask)
    if as_json:
        names = ("name", "partitions", "replication_factor")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    empty = "There are no topics yet. Create one with `riverrun topics create NAME`."
    columns = ("topic", "partitions", "replication factor")
    print_tables([Table(columns=columns, rows=list(rows), empty=empty)])


def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            help="Number of partitions; default: num.partitions of the cluster.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            help="Replicas of each partition; default: default.replication.factor of the cluster.",
        ),
    ] = None,
    configs: Configs = [],  # noqa: B006 (typer reads it and never changes it)
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create topics.

    \b
    riverrun topics create events
    riverrun topics create events --partitions 12 --replication-factor 3
    riverrun topics create latest --config cleanup.policy=compact
    """
    from riverrun.cli.support.output import counted, print_json
    from riverrun.cli.support.session import run
    from riverrun.cli.topics.admin import create_topics

    settings = parse_settings(configs, "--config")
    made = run(
        bootstrap,
        lambda pool: create_topics(
            pool,
            names,
            partitions=partitions or BROKER_DEFAULT,
            replication_factor=replication_factor or BROKER_DEFAULT,
            settings=settings,
            may_exist=if_not_exists,
        ),
    )
    if as_json:
        print_json([row.described() for row in made.created])
    else:
        for row in made.created:
            factor = f"replication factor {row.replication_factor}"
            state = "Created" if row.is_new else "Already there:"
            size = f"{counted(row.partitions, 'partition')}, {factor}" if row.is_new else ""
            print(f"{state} {row.name}" + (f" with {size}." if size else "."))
    if made.failures:
        fail("\n".join(made.failures), made.exit_code)


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
    watch: Watch = False,
) -> None:
    """Show partitions, offsets and changed settings.

    A partition has its leader, replicas, in-sync replicas, offsets, size and lag: the records that
    each follower lacks, as 2:0 3:1500, with ? for a node that does not respond. Without names, all
    topics. Plain rows start with their kind: topic, partition or setting.

    \b
    riverrun topics describe events
    riverrun topics describe events --all-settings
    riverrun topics describe events --watch
    riverrun topics describe events | grep ^partition | cut -f2-4
    """
    from riverrun.cli.support.output import is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show
    from riverrun.cli.topics.report import describe_topics, tables_of

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
            print_tables(tables_of(topic, is_terminal=is_terminal()))

    show(once, is_watched=watch)


def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, help="The new number of partitions; it can only grow."
        ),
    ] = None,
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
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings or add partitions.

    Everything is validated before anything changes. Adding partitions changes which partition a key
    maps to.

    \b
    riverrun topics alter events --config retention.ms=86400000
    riverrun topics alter events --delete-config retention.ms
    riverrun topics alter events --partitions 24
    """
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run
    from riverrun.cli.topics.admin import alter_topic

    changes: dict[str, str | None] = {**parse_settings(configs, "--config")}
    for text in delete_configs:
        if text in changes:
            fail(f"{text} is both in --config and in --delete-config", USAGE)
        changes[text] = None
    if partitions is None and not changes:
        fail("nothing to change: use --partitions, --config or --delete-config", USAGE)
    run(bootstrap, lambda pool: alter_topic(pool, name, partitions=partitions, settings=changes))
    if as_json:
        print_json({"name": name, "partitions": partitions, "settings": changes})
        return
    for setting, value in changes.items():
        print(f"{name}: {setting} " + ("has its default again." if value is None else f"= {value}"))
    if partitions is not None:
        print(f"{name}: {partitions} partitions")


def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records. Asks on a terminal; elsewhere it needs --yes.

    \b
    riverrun topics delete events
    riverrun topics delete events clicks --yes
    """
    from riverrun.cli.support.output import counted, print_json
    from riverrun.cli.support.session import find_topic, run
    from riverrun.cli.topics.admin import delete_topics

    async def look(pool: ConnectionPool) -> int:
        return sum([len((await find_topic(pool, name)).partitions) for name in names])

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
        fail("\n".join(failures.values()), FAILED)


def _replication_factor(partitions: object) -> int:
    assert isinstance(partitions, tuple)
    return max((len(partition.replica_nodes) for partition in partitions), default=0)
