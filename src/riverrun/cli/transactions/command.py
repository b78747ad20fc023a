"""``riverrun transactions``: list, describe and abort transactions, and find hanging ones."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.completion import topic_names, transactional_ids
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    UNREACHABLE,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    Wide,
    Yes,
    confirm,
    fail,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.admin.tables import Table
    from riverrun.admin.transactions.admin import CoordinatedTransaction, HeldPartition
    from riverrun.admin.transactions.hanging import HangingTransaction
    from riverrun.client.pool import ConnectionPool

TransactionalId = Annotated[
    str,
    typer.Argument(
        metavar="TRANSACTIONAL-ID", autocompletion=transactional_ids, show_default=False
    ),
]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TOPIC", autocompletion=topic_names, help="Only partitions of it."
    ),
]


def register(app: typer.Typer) -> None:
    transactions = CommandApp(help="List, describe and abort transactions; find hanging ones.")
    transactions.command("list")(list_transactions)
    transactions.command("describe")(describe)
    transactions.command("hanging")(hanging)
    transactions.command("abort")(abort)
    app.add_typer(transactions, name="transactions")


def list_transactions(
    states: Annotated[
        list[str],
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=False,
            help="Only ids in this state, such as Ongoing; may be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads it and never changes it)
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match as a whole."),
    ] = None,
    is_open: Annotated[
        bool, typer.Option("--open", help="Only transactions that are not complete.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    wide: Wide = False,
    watch: Watch = False,
) -> None:
    """List transactional ids with the state and age of their transaction.

    An open transaction holds back later records of its partitions from consumers with
    read_committed. The age counts from its first record; - if none is open. --wide adds producer,
    epoch and coordinator.

    \b
    riverrun transactions list
    riverrun transactions list --open --watch
    riverrun transactions list --pattern 'billing-.*' --json
    """
    from riverrun.admin.transactions import admin
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    try:
        wanted = [*admin.parse_states(states), *(admin.OPEN_STATES if is_open else ())]
    except ValueError as error:
        fail(f"--state {error}", USAGE)

    async def ask(pool: ConnectionPool) -> list[CoordinatedTransaction]:
        return await admin.list_transactions(pool, states=wanted, pattern=pattern, silent=_silent)

    def once() -> None:
        found, now_ms = run(bootstrap, ask), _now_ms()
        if as_json:
            print_json([row.described(now_ms) for row in found])
            return
        layout = Layout(has_headings=not no_headers, is_wide=wide)
        print_tables([_ids_table(found, now_ms)], layout)

    show(once, is_watched=watch)


def _ids_table(found: list[CoordinatedTransaction], now_ms: int) -> Table:
    from riverrun.admin.tables import Table

    return Table(
        columns=("id", "state", "age s", "timeout s", "partitions", "producer", "epoch", "node"),
        wide=("producer", "epoch", "node"),
        empty="no transactional id is known",
        rows=[
            (
                row.transactional_id, row.state, row.age_seconds(now_ms), row.timeout_ms / 1000,
                len(row.partitions), str(row.producer_id), str(row.producer_epoch),
                str(row.coordinator),
            )
            for row in found
        ],
    )  # fmt: skip


def describe(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    watch: Watch = False,
) -> None:
    """Show why a transaction is open, its partitions, and who waits for it.

    For each partition of an open transaction: its first record, the last stable offset, the high
    watermark, the number of records held back from consumers with read_committed, and the groups
    that read the partition.

    \b
    riverrun transactions describe billing-1
    riverrun transactions describe billing-1 --json | jq .cause
    """
    from riverrun.admin.transactions.admin import describe_transaction
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    def once() -> None:
        found, partitions = run(
            bootstrap, lambda pool: describe_transaction(pool, transactional_id)
        )
        now_ms = _now_ms()
        if as_json:
            rows = [row.described() for row in partitions]
            print_json({**found.described(now_ms), "partitions": rows})
            return
        tables = _description(found, partitions, now_ms, is_terminal=is_terminal())
        print_tables(tables, Layout(has_headings=not no_headers))

    show(once, is_watched=watch)


def _description(
    found: CoordinatedTransaction,
    partitions: list[HeldPartition],
    now_ms: int,
    *,
    is_terminal: bool,
) -> list[Table]:
    from riverrun.admin.tables import Table

    age = found.age_seconds(now_ms)
    rows = Table(
        kind="partition",
        columns=("topic", "partition", "start", "stable", "end", "held", "groups"),
        rows=[
            (
                row.partition.topic, row.partition.partition, row.start_offset, row.stable_offset,
                row.high_watermark, row.held, ",".join(row.groups) or None,
            )
            for row in partitions
        ],
    )  # fmt: skip
    if is_terminal:
        since = "" if age is None else f" for {age:.0f} s"
        rows.title = (
            f"{found.transactional_id}  {found.state}{since}, producer {found.producer_id} epoch "
            f"{found.producer_epoch}, coordinator {found.coordinator}\n{found.cause(now_ms)}"
        )
        return [rows]
    head = Table(
        kind="transaction",
        columns=("id", "state", "age s", "timeout s", "producer", "epoch", "node", "cause"),
        rows=[
            (
                found.transactional_id, found.state, age, found.timeout_ms / 1000,
                str(found.producer_id), str(found.producer_epoch), str(found.coordinator),
                found.cause(now_ms),
            )
        ],
    )  # fmt: skip
    return [head, rows]


def hanging(
    topic: Topic = None,
    broker: Annotated[
        int | None,
        typer.Option("--broker", metavar="ID", help="Only partitions that this broker leads."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Find transactions that no coordinator will end, in all partitions.

    Each row has the cause, the age of the transaction's last record, the records held back from
    consumers with read_committed, and the groups that read the partition. The cluster aborts such
    transactions itself after a while; `riverrun transactions abort` does it at once. Exits with 1
    if there is one, and with 3 if this is not known because a coordinator or a leader did not
    answer, or because your user may not see all transactional ids. A transaction also looks hanging
    if a rule denies your user to describe its transactional id: search as a user without such
    rules before you abort.

    \b
    riverrun transactions hanging
    riverrun transactions hanging --topic orders --json
    """
    from riverrun.admin.transactions.hanging import CoordinatorsUnknown, find_hanging
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    silent: list[int] = []

    async def ask(pool: ConnectionPool) -> list[HangingTransaction]:
        try:
            return await find_hanging(pool, topic=topic, broker=broker, silent=silent.append)
        except CoordinatorsUnknown as error:
            fail(f"it is not known which transactions hang: {error}", UNREACHABLE)

    found, now_ms = run(bootstrap, ask), _now_ms()
    if as_json:
        print_json([row.described(now_ms) for row in found])
    else:
        table = _hanging_table(found, now_ms, is_complete=not silent)
        print_tables([table], Layout(has_headings=not no_headers))
    for node in silent:
        print(f"riverrun: the partitions of node {node} were not checked", file=sys.stderr)
    if found or silent:
        raise typer.Exit(FAILED if found else UNREACHABLE)


def _hanging_table(found: list[HangingTransaction], now_ms: int, *, is_complete: bool) -> Table:
    from riverrun.admin.tables import Table

    return Table(
        columns=(
            "topic", "partition", "start", "producer", "epoch", "age s", "held", "groups", "cause",
        ),
        empty="no transaction hangs" + ("" if is_complete else " in the checked partitions"),
        rows=[
            (
                row.open.partition.topic, row.open.partition.partition, row.open.start_offset,
                str(row.open.producer_id), str(row.open.producer_epoch), row.age_seconds(now_ms),
                row.held.held, ",".join(row.held.groups) or None, row.cause,
            )
            for row in found
        ],
    )  # fmt: skip


def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRANSACTIONAL-ID]", autocompletion=transactional_ids, show_default=False
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="Abort in one partition of this topic only.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="INDEX", min=0, help="With --topic.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset",
            metavar="OFFSET",
            min=0,
            help="The first record of the transaction, as `transactions hanging` shows it.",
        ),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction. Asks on a terminal; elsewhere it needs --yes.

    With a transactional id, its coordinator aborts the transaction and fences the producer: the
    application gets an error and must start again. With --topic, --partition and --start-offset, an
    abort marker is written to that partition only. Use this form only for what `riverrun
    transactions hanging` shows, because it ends one partition of a transaction without the others.

    \b
    riverrun transactions abort billing-1
    riverrun transactions abort --topic orders --partition 0 --start-offset 4711 --yes
    """
    from riverrun.admin.transactions.admin import find_open_transaction, force_end
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    places = (topic, partition, start_offset)
    is_place_missing = any(each is None for each in places)
    is_place_given = any(each is not None for each in places)
    if is_place_missing if transactional_id is None else is_place_given:
        fail("name a transactional id, or --topic, --partition and --start-offset", USAGE)
    if transactional_id is None:
        assert topic is not None and partition is not None and start_offset is not None
        _abort_partition(bootstrap, topic, partition, start_offset, yes=yes, as_json=as_json)
        return
    name = transactional_id
    run(bootstrap, lambda pool: find_open_transaction(pool, name))
    confirm(f"Abort the transaction of {name} and fence its producer?", is_agreed=yes)
    run(bootstrap, lambda pool: force_end(pool, name))
    if as_json:
        print_json({"aborted": name})
    else:
        print(f"Aborted the transaction of {name}.")


def _abort_partition(
    bootstrap: str, topic: str, partition: int, start_offset: int, *, yes: bool, as_json: bool
) -> None:
    from riverrun.admin.transactions.hanging import find_open, write_abort
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run
    from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition

    at = TopicPartition(TopicName(topic), PartitionIndex(partition))
    found = run(bootstrap, lambda pool: find_open(pool, at, start_offset))
    confirm(f"Abort the transaction of producer {found.producer_id} in {at} only?", is_agreed=yes)
    run(bootstrap, lambda pool: write_abort(pool, found))
    if as_json:
        row = {"topic": topic, "partition": partition, "start_offset": start_offset}
        print_json({"aborted": row})
    else:
        print(f"Aborted the transaction that starts at offset {start_offset} of {at}.")


def _silent(node: int) -> None:
    text = f"node {node} cannot be reached: its transactions are not shown"
    print(f"riverrun: {text}", file=sys.stderr)


def _now_ms() -> int:
    return int(time.time() * 1000)
