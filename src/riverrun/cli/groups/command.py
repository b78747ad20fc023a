"""``riverrun groups``: list, describe and delete consumer groups; reset and delete offsets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.completion import group_names, topic_names
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
    parse_datetime,
    parse_topics,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.admin.groups.admin import Group, Move, Target
    from riverrun.admin.tables import Table
    from riverrun.client.pool import ConnectionPool
    from riverrun.model.errors import ErrorCode, KafkaError

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
ToOffset = Annotated[
    int | None, typer.Option("--to-offset", metavar="OFFSET", min=0, help="To this offset.")
]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="2025-01-31T12:00",
        help="To the first record at or after this time; local time, or with a zone (Z, +01:00).",
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option("--shift-by", metavar="N", help="Move by this many records; negative moves back."),
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the change; without this it is only shown.")
]


def register(app: typer.Typer) -> None:
    groups = CommandApp(help="List, describe, reset and delete consumer groups.")
    groups.command("list")(list_groups)
    groups.command("describe")(describe)
    groups.command("reset-offsets")(reset_offsets)
    groups.command("delete-offsets")(delete_offsets)
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
    no_headers: NoHeaders = False,
    wide: Wide = False,
    watch: Watch = False,
) -> None:
    """List groups with their state, members, lag and topics.

    The lag is the number of records after the committed offsets; - if nothing was committed. --wide
    adds protocol and coordinator.

    \b
    riverrun groups list
    riverrun groups list --state Empty --no-headers | cut -f1
    """
    from riverrun.admin.groups.admin import list_all
    from riverrun.admin.groups.listing import GroupSummary, groups_table, summarize
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    wanted = parse_states(states)

    async def ask(pool: ConnectionPool) -> list[GroupSummary]:
        return await summarize(pool, await list_all(pool, wanted, silent=_silent))

    def once() -> None:
        found = run(bootstrap, ask)
        if as_json:
            print_json([group.described() for group in found])
            return
        layout = Layout(has_headings=not no_headers, is_wide=wide)
        print_tables([groups_table(found)], layout)

    show(once, is_watched=watch)


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
    no_headers: NoHeaders = False,
    wide: Wide = False,
    watch: Watch = False,
) -> None:
    """Show state, members and the lag in each partition.

    In a pipe each row starts with its kind: group, member or partition. A partition has the
    committed offset, the end offset and the lag (- if there is none), and the client that reads it.
    --wide adds the member ids.

    \b
    riverrun groups describe billing
    riverrun groups describe billing --watch
    riverrun groups describe billing --json | jq .[0].lag
    """
    from riverrun.admin.groups.admin import describe_group
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    layout = Layout(has_headings=not no_headers, is_wide=wide)

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
            print_tables(_tables_of(group, is_terminal=is_terminal()), layout)

    show(once, is_watched=watch)


def _tables_of(group: Group, *, is_terminal: bool) -> list[Table]:
    from riverrun.admin.tables import Table, counted

    members = Table(
        kind="member",
        columns=("client", "host", "partitions", "epoch", "state", "instance", "member"),
        optional=("epoch", "state", "instance"),
        wide=("instance", "member"),
        rows=[
            (
                one.client_id, one.host, _in_short(one.partitions), one.epoch, one.state,
                one.instance_id, one.member_id,
            )
            for one in group.members
        ],
    )  # fmt: skip
    clients = {member.member_id: member.client_id for member in group.members}
    offsets = Table(
        kind="partition",
        columns=("topic", "partition", "committed", "end", "lag", "client", "member"),
        optional=("client", "member"),
        wide=("member",),
        rows=[
            (
                row.partition.topic, row.partition.partition, row.committed, row.end, row.lag,
                clients.get(row.member_id or ""), row.member_id,
            )
            for row in group.offsets
        ],
    )  # fmt: skip
    if is_terminal:
        members.title = (
            f"{group.name}  {group.type}, {group.state}, {counted(len(group.members), 'member')}, "
            f"lag {group.lag:,}, coordinator {group.coordinator}"
            + (f", {group.assignor}" if group.assignor else "")
            + ("" if group.epoch is None else f", epoch {group.epoch}")
        )
        return [members, offsets]
    head = Table(
        kind="group",
        columns=(
            "group",
            "state",
            "assignor",
            "members",
            "lag",
            "type",
            "epoch",
            "coordinator",
        ),
        wide=("coordinator",),
    )
    head.rows = [
        (
            group.name, group.state, group.assignor or None, len(group.members), group.lag,
            group.type, group.epoch, str(group.coordinator),
        )
    ]  # fmt: skip
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
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="After the newest record.")
    ] = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    shift_by: ShiftBy = None,
    execute: Execute = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Move a group to other offsets. Shows the effect; --execute applies it.

    The group must have no members; otherwise it is not changed, and the command exits with 1, also
    without --execute. Offsets outside the log are moved to its nearest end.

    \b
    riverrun groups reset-offsets billing --to-earliest
    riverrun groups reset-offsets billing --topic orders --to-datetime 2025-01-31T12:00 --execute
    riverrun groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
    """
    from riverrun.admin.groups.admin import move, plan_moves, refusal_of
    from riverrun.admin.requests import in_words
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run

    target = _target(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        shift_by=shift_by,
    )
    wanted = parse_topics(topics)

    async def work(pool: ConnectionPool) -> tuple[list[Move], KafkaError | None]:
        moves = await plan_moves(pool, name, target, wanted)
        if execute:
            await move(pool, name, moves)
        return moves, None if execute else await refusal_of(pool, name)

    moves, refusal = run(bootstrap, work)
    if as_json:
        rows = [step.described() for step in moves]
        reason = None if refusal is None else refusal.message
        print_json({"group": name, "executed": execute, "refused": reason, "partitions": rows})
    else:
        print_tables([_moves_table(moves)], Layout(has_headings=not no_headers))
    if refusal is not None:
        fail(f"--execute would be refused: {in_words(refusal)}")
    if not execute and not as_json and is_terminal():
        print("\nNothing was changed. Use --execute to apply it.")


def _moves_table(moves: list[Move]) -> Table:
    from riverrun.admin.tables import Table

    table = Table(columns=("topic", "partition", "old offset", "new offset", "new lag"))
    table.rows = [
        (step.partition.topic, step.partition.partition, step.old, step.new, step.end - step.new)
        for step in moves
    ]
    return table


def _target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
) -> Target:
    from riverrun.admin.groups.admin import Target
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


def delete_offsets(
    name: Name,
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1,...]",
            autocompletion=topic_names,
            show_default=False,
            help="The topic, or these partitions of it; may be repeated.",
        ),
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete the committed offsets of single topics. Asks on a terminal; elsewhere it needs --yes.

    Use it when a group no longer reads a topic, so that the topic's lag disappears. It is refused
    while members of the group read the topic.

    \b
    riverrun groups delete-offsets billing --topic old-orders
    riverrun groups delete-offsets billing --topic orders:0,2 --yes
    """
    from riverrun.admin.groups import admin
    from riverrun.admin.requests import in_words
    from riverrun.admin.tables import counted
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run
    from riverrun.model.errors import KafkaError

    wanted = parse_topics(topics)
    places = list(run(bootstrap, lambda pool: admin.find_committed(pool, name, wanted)))
    count = counted(len(places), "partition")
    confirm(
        f"Delete the committed offsets of {name} in {', '.join(wanted)} ({count})?", is_agreed=yes
    )
    failures = run(bootstrap, lambda pool: admin.delete_offsets(pool, name, places))
    gone = [at for at in places if at not in failures]
    if as_json:
        rows = [{"topic": at.topic, "partition": at.partition} for at in gone]
        print_json({"group": name, "deleted": rows})
    elif gone:
        print(f"Deleted the committed offsets of {name} in {', '.join(map(str, gone))}.")
    reasons: dict[ErrorCode, list[str]] = {}
    for at, code in failures.items():
        reasons.setdefault(code, []).append(str(at))
    if reasons:
        texts = [
            in_words(KafkaError(code, f"{', '.join(kept)}: {code.name}"))
            for code, kept in reasons.items()
        ]
        fail("\n".join(texts), FAILED)


def delete(
    names: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their committed offsets. Asks on a terminal; elsewhere it needs --yes.

    \b
    riverrun groups delete billing --yes
    """
    from riverrun.admin.groups.admin import delete_groups
    from riverrun.admin.requests import in_words
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
        fail("\n".join(in_words(error) for error in failures.values()), FAILED)
