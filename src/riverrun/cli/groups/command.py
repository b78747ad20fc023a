"""``riverrun groups``: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.completion import group_names, topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    USAGE,
    AsJson,
    Bootstrap,
    confirm,
    fail,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.cli.groups.admin import Group, Target
    from riverrun.cli.support.output import Table
    from riverrun.client.pool import ConnectionPool

Names = Annotated[
    list[str],
    typer.Argument(metavar="GROUP", autocompletion=group_names, show_default=False),
]
Name = Annotated[
    str, typer.Argument(metavar="GROUP", autocompletion=group_names, show_default=False)
]

STATES = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable",
    "Dead",
)  # fmt: skip
"""States of both group protocols, because the cluster may be Apache Kafka."""

Topics = Annotated[
    list[str],
    typer.Option(
        "--topic",
        metavar="TOPIC[:0,1,...]",
        autocompletion=topic_names,
        show_default=False,
        help="Only this topic, or these partitions of it; may be repeated. Default: everything "
        "that the group has committed.",
    ),
]
ToOffset = Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="2025-01-31T12:00",
        help="To the first record at or after this time; local time, or with a zone (Z, +01:00).",
    ),
]
ShiftBy = Annotated[
    int | None, typer.Option("--shift-by", help="Move by this many records; negative moves back.")
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the change; without this it is only shown.")
]


def register(app: typer.Typer) -> None:
    groups = typer.Typer(
        help="List, describe, reset and delete consumer groups.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    groups.command("list")(list_groups)
    groups.command("describe")(describe)
    groups.command("reset-offsets")(reset_offsets)
    groups.command("delete")(delete)
    app.add_typer(groups, name="groups")


def list_groups(
    states: Annotated[
        list[str],
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=False,
            help="Only groups in this state, such as Stable or Empty; may be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads it and never changes it)
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List groups with their state.

    \b
    riverrun groups list
    riverrun groups list --state Empty | cut -f1
    """
    from riverrun.cli.groups.admin import list_all
    from riverrun.cli.support.output import Table, print_json, print_tables
    from riverrun.cli.support.session import run

    wanted = parse_states(states)
    rows = run(bootstrap, lambda pool: list_all(pool, wanted, silent=_silent))
    if as_json:
        print_json([row.described() for row in rows])
        return
    empty = "There are no groups. `riverrun consume TOPIC --group NAME` creates one."
    columns = ("group", "state", "type", "protocol")
    table = Table(columns=columns, empty=empty)
    table.rows = [(row.group, row.state, row.type, row.protocol_type or None) for row in rows]
    print_tables([table])


def _silent(node: int) -> None:
    text = f"node {node} cannot be reached: its groups are not shown"
    print(f"riverrun: {text}", file=sys.stderr)


def parse_states(texts: list[str]) -> list[str]:
    """States by name, in any case. An unknown one would list nothing."""
    known = {state.lower(): state for state in STATES}
    for text in texts:
        if text.lower() not in known:
            fail(f"--state {text}: expected one of {', '.join(STATES)}", USAGE)
    return [known[text.lower()] for text in texts]


def describe(
    names: Names,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    watch: Watch = False,
) -> None:
    """Show state, members and the lag in each partition.

    Plain rows start with their kind: group, member or partition. The last three columns of a
    partition are the committed offset, the end offset and the lag; - if there is none.

    \b
    riverrun groups describe billing
    riverrun groups describe billing --watch
    riverrun groups describe billing --json | jq .[0].lag
    """
    from riverrun.cli.groups.admin import describe_group
    from riverrun.cli.support.output import is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    async def ask(pool: ConnectionPool) -> list[Group]:
        return [await describe_group(pool, name) for name in dict.fromkeys(names)]

    def once() -> None:
        found = run(bootstrap, ask)
        if as_json:
            print_json([group.described() for group in found])
            return
        for place, group in enumerate(found):
            if place and is_terminal():
                print()
            print_tables(_tables_of(group, is_terminal=is_terminal()))

    show(once, is_watched=watch)


def _tables_of(group: Group, *, is_terminal: bool) -> list[Table]:
    from riverrun.cli.support.output import Table, counted

    members = Table(
        kind="member",
        columns=("member", "client", "host", "partitions"),
        rows=[
            (member.member_id, member.client_id, member.host, _in_short(member.partitions))
            for member in group.members
        ],
    )
    offsets = Table(
        kind="partition",
        columns=("topic", "partition", "member", "committed", "end", "lag"),
        rows=[
            (
                row.partition.topic,
                row.partition.partition,
                row.member_id,
                row.committed,
                row.end,
                row.lag,
            )
            for row in group.offsets
        ],
    )
    if is_terminal:
        members.title = (
            f"{group.name}  {group.state}, {counted(len(group.members), 'member')}, "
            f"lag {group.lag:,}, coordinator {group.coordinator}"
            + (f", {group.assignor}" if group.assignor else "")
        )
        return [members, offsets]
    head = Table(kind="group", columns=())
    head.rows = [(group.name, group.state, group.assignor or None, len(group.members), group.lag)]
    return [head, members, offsets]


def _in_short(partitions: object) -> str | None:
    """``events:0,1 clicks:2``"""
    assert isinstance(partitions, tuple)
    topics: dict[str, list[str]] = {}
    for at in partitions:
        topics.setdefault(at.topic, []).append(str(at.partition))
    return " ".join(f"{name}:{','.join(indexes)}" for name, indexes in topics.items()) or None


def reset_offsets(
    name: Name,
    topics: Topics = [],  # noqa: B006 (typer reads it and never changes it)
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the oldest record.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the newest.")] = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    shift_by: ShiftBy = None,
    execute: Execute = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move a group to other offsets. Shows the effect; --execute applies it.

    The group must have no members. Offsets outside the log are moved to its nearest end.

    \b
    riverrun groups reset-offsets billing --to-earliest
    riverrun groups reset-offsets billing --topic orders --to-datetime 2025-01-31T12:00 --execute
    riverrun groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
    """
    from riverrun.cli.groups.admin import Move, move, plan_moves
    from riverrun.cli.support.output import is_terminal, print_json
    from riverrun.cli.support.session import run

    target = _target(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        shift_by=shift_by,
    )
    wanted = parse_topics(topics)

    async def work(pool: ConnectionPool) -> list[Move]:
        moves = await plan_moves(pool, name, target, wanted)
        if execute:
            await move(pool, name, moves)
        return moves

    moves = run(bootstrap, work)
    if as_json:
        rows = [step.described() for step in moves]
        print_json({"group": name, "executed": execute, "partitions": rows})
        return
    _print_moves(moves)
    if not execute and is_terminal():
        print("\nNothing was changed. Use --execute to apply it.")


def _print_moves(moves: object) -> None:
    from riverrun.cli.support.output import Table, print_tables

    assert isinstance(moves, list)
    table = Table(columns=("topic", "partition", "old offset", "new offset", "new lag"))
    table.rows = [
        (step.partition.topic, step.partition.partition, step.old, step.new, step.end - step.new)
        for step in moves
    ]
    print_tables([table])


def _target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
) -> Target:
    from riverrun.cli.groups.admin import Target
    from riverrun.client.partitions import EARLIEST, LATEST

    targets: list[Target] = []
    if to_earliest:
        targets.append(Target(time=EARLIEST))
    if to_latest:
        targets.append(Target(time=LATEST))
    if to_offset is not None:
        targets.append(Target(offset=to_offset))
    if to_datetime is not None:
        targets.append(Target(time=parse_datetime(to_datetime)))
    if shift_by is not None:
        targets.append(Target(shift=shift_by))
    if len(targets) != 1:
        fail(
            "use exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by",
            USAGE,
        )
    return targets[0]


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time; local time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"--to-datetime {text}: expected a time such as 2025-01-31T12:00 or "
            "2025-01-31T12:00:00Z",
            USAGE,
        )
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        fail(f"--to-datetime {text}: before 1970", USAGE)
    return milliseconds


def parse_topics(texts: list[str]) -> dict[str, frozenset[int] | None]:
    """Parse ``TOPIC`` or ``TOPIC:0,1`` to partitions by topic, None for all."""
    wanted: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, found, numbers = text.partition(":")
        indexes = numbers.split(",") if found else []
        if not topic or (found and not all(index.isdigit() for index in indexes)):
            fail(f"--topic {text}: expected TOPIC or TOPIC:0,1", USAGE)
        wanted[topic] = frozenset(map(int, indexes)) if found else None
    return wanted


def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their committed offsets. Asks on a terminal; elsewhere it needs --yes.

    \b
    riverrun groups delete billing --yes
    """
    from riverrun.cli.groups.admin import delete_groups
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    confirm(f"Delete {', '.join(names)} with all committed offsets?", is_agreed=yes)
    failures = run(bootstrap, lambda pool: delete_groups(pool, names))
    gone = [name for name in names if name not in failures]
    if as_json:
        print_json({"deleted": gone})
    else:
        for name in gone:
            print(f"Deleted {name}.")
    if failures:
        fail("\n".join(failures.values()), FAILED)
