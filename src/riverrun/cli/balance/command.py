"""``riverrun cluster balance``, ``moves``, ``maintenance``, ``decommission``, ``recommission``."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    NOT_FOUND,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    Yes,
    confirm,
    fail,
    parse_topics,
)
from riverrun.cli.support.sizes import parse_bytes
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from riverrun.admin.balance.broker_modes import MaintenanceEffect
    from riverrun.admin.balance.cluster_state import ClusterView
    from riverrun.admin.balance.moves_report import MoveProgress
    from riverrun.client.pool import ConnectionPool
    from riverrun.placement.planner.stored_plan import StoredPlan, StoredRollback

Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Limit what each broker sends and receives for the moves, per second: 50MB, 500kB. "
        "It is removed when the moves end.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
OnlyShown = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")
]


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


def register(cluster: typer.Typer) -> None:
    cluster.command("balance")(balance)
    moves_app = CommandApp(help="Show and cancel moves of partitions.", invoke_without_command=True)
    moves_app.info.no_args_is_help = False
    moves_app.callback()(moves)
    moves_app.command("cancel")(cancel)
    cluster.add_typer(moves_app, name="moves")
    cluster.command("maintenance")(maintenance)
    cluster.command("decommission")(decommission)
    cluster.command("recommission")(recommission)


def parse_rate(text: str | None) -> int | None:
    """Bytes per second of ``50MB`` or ``500 kB/s``."""
    if text is None:
        return None
    rate = parse_bytes(text)
    if not rate:
        fail(f"--throttle {text}: expected a rate per second such as 50MB", USAGE)
    return rate


def balance(
    is_dry_run: DryRun = False,
    is_agreed: Yes = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Spread replicas, leaders and data evenly over the brokers.

    Shows the plan, asks, lets the controller run it a few moves at a time, and waits for the end.
    It moves as little as possible: a new broker takes its share, and nothing else changes. Racks
    are respected. Ctrl-C ends only the waiting: the plan goes on (see `riverrun cluster moves`). Of
    more than 10,000 moves only the first ones do: keep the command running, or run it again.

    \b
    riverrun cluster balance --dry-run
    riverrun cluster balance --throttle 50MB
    riverrun cluster balance --dry-run --json | jq .bytes
    """
    from riverrun.admin.balance.cluster_state import ask_state
    from riverrun.admin.balance.moves_report import ask_copy_rate
    from riverrun.admin.balance.planning import plan_of
    from riverrun.admin.balance.stored_plans import ask_suggestion
    from riverrun.cli.balance.run_plan import PlanRun
    from riverrun.cli.support.session import run

    rate = parse_rate(throttle)
    suggestion = run(bootstrap, ask_suggestion)
    if suggestion is not None and not as_json:
        print(f"The controller suggests a plan: {suggestion.text}", file=sys.stderr)
    state = run(bootstrap, ask_state)
    # A node in maintenance keeps its share of preferred leaders: it leads again afterwards.
    plan = plan_of(state)
    measured = run(bootstrap, ask_copy_rate) if rate is None and plan.moves else None
    shown = PlanRun(
        bootstrap=bootstrap,
        rate=rate,
        command="cluster balance",
        as_json=as_json,
        measured=measured,
    )
    if not plan.moves and not as_json:
        print("The cluster is balanced: nothing to move.")
        return
    shown.show(plan, state.traffic, has_headings=not no_headers)
    if is_dry_run or not plan.moves:
        shown.print_json({"suggestion": None if suggestion is None else suggestion.text})
        return
    confirm("Start these moves?", is_agreed=is_agreed)
    shown.execute(plan)
    shown.print_json({})


def moves(
    context: typer.Context,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
    watch: Watch = False,
) -> None:
    """Show the plans that run, and the moves in progress: bytes, rate, and the time that is left.

    A plan has moves that are done, under way, waiting, or dropped because something else changed
    their partition. Moves by other tools are shown too. Moves that were rolled back are listed with
    the reason; `--json` also has the plans that ended last.

    The rate is measured for a second, or for up to five while nothing arrives; with `--watch` it is
    a mean over some 30 seconds. It is how fast the missing part shrinks, so a partition that is
    written faster than it is copied "will not finish at this rate".

    \b
    riverrun cluster moves
    riverrun cluster moves --watch
    riverrun cluster moves cancel orders:3
    riverrun cluster moves cancel --all
    """
    if context.invoked_subcommand is not None:
        return
    from riverrun.admin.balance.moves_report import MoveRates, ask_moves, progress_table
    from riverrun.admin.balance.plan_report import (
        described_end,
        described_rollback,
        described_stored,
        plans_table,
        rollbacks_table,
    )
    from riverrun.admin.balance.stored_plans import ask_all_plans, ask_rollbacks
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run
    from riverrun.cli.support.watching import show

    rates = MoveRates()

    async def ask(
        pool: ConnectionPool,
    ) -> tuple[list[StoredPlan], list[MoveProgress], dict[str, StoredRollback]]:
        found = await ask_moves(pool, rates)
        return await ask_all_plans(pool), found, await ask_rollbacks(pool)

    def once() -> None:
        plans, found, rollbacks = run(bootstrap, ask)
        running = [plan for plan in plans if plan.is_running]
        if as_json:
            print_json(
                {
                    "moves": [move.described() for move in found],
                    "plans": [described_stored(plan) for plan in running],
                    "ended": [described_end(plan) for plan in plans if not plan.is_running],
                    "rollbacks": [described_rollback(*row) for row in rollbacks.items()],
                }
            )
        else:
            tables = [plans_table(running)] if running else []
            tables.append(progress_table(found))
            if rollbacks:
                tables.append(rollbacks_table(rollbacks))
            print_tables(tables, Layout(has_headings=not no_headers))

    show(once, is_watched=watch)


def cancel(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[:0,1,...]", show_default=False, help="Only these."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Cancel all plans and moves.")] = False,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="PLAN", show_default=False, help="Cancel this plan."),
    ] = None,
    is_dry_run: OnlyShown = False,
    is_agreed: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Cancel moves: their partitions return to the replicas from before.

    What was copied is deleted. Moves that have ended are not undone; move them back with
    `riverrun topics move`. A plan that is cancelled starts no further moves. If only some of its
    moves are cancelled, also moves that wait, it goes on with the others.

    \b
    riverrun cluster moves cancel orders --dry-run
    riverrun cluster moves cancel --all --yes
    """
    from riverrun.admin.balance import cancellation
    from riverrun.admin.balance.cancellation import Cancelled, find_cancellable
    from riverrun.admin.tables import counted
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    if bool(topics) + is_all + (plan is not None) != 1:
        fail("name topics or a plan, or use --all", USAGE)
    wanted = None if is_all else parse_topics(topics or [], option="")
    ending = run(bootstrap, lambda pool: find_cancellable(pool, wanted, plan))
    found = Cancelled()
    if is_dry_run:
        found = ending.expected()
    elif not ending.is_nothing:
        confirm(f"Cancel {ending}?", is_agreed=is_agreed)
        found = run(bootstrap, lambda pool: cancellation.cancel(pool, ending))
    if found.is_nothing and not is_all:
        what = "no such move is in progress" if plan is None else f"there is no plan {plan}"
        fail(f"{what}; `riverrun cluster moves` lists them", NOT_FOUND)
    if as_json:
        print_json({**found.described(), "executed": not is_dry_run})
    elif found.is_nothing:
        print("No move is in progress.")
    else:
        plans = f"{counted(len(found.plans), 'plan')} and " if found.plans else ""
        verb = "would be cancelled" if is_dry_run else "cancelled"
        print(f"{plans}{counted(len(found.moves), 'move')} {verb}.")
    for at, why in found.failures.items():
        fail(f"{at}: {why}")


def maintenance(
    switch: Annotated[Switch, typer.Argument(metavar="on|off", show_default=False)],
    node: Annotated[int, typer.Argument(metavar="NODE", show_default=False, help="Id of a node.")],
    is_forced: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if another node is in maintenance or data becomes unavailable."
        ),
    ] = False,
    is_dry_run: OnlyShown = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let a node lead nothing while you work on it, and let it lead again afterwards.

    `on` moves its leaderships to other in-sync replicas and waits until it leads nothing. Its
    replicas stay and stay in sync. The mode survives restarts until `off`.

    \b
    riverrun cluster maintenance on 2 --dry-run
    riverrun cluster maintenance on 2
    riverrun cluster maintenance off 2
    """
    from riverrun.admin.balance import broker_modes, cluster_state
    from riverrun.admin.broker_settings import ACTIVE, DECOMMISSIONING, MAINTENANCE
    from riverrun.admin.tables import counted
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    state = run(bootstrap, lambda pool: cluster_state.ask_state(pool, needed=node))
    if state.broker(node).mode == DECOMMISSIONING:
        fail(f"node {node} is being decommissioned; `riverrun cluster recommission` undoes that")
    effect = broker_modes.effect_of(state, node)
    if switch is Switch.ON:
        _check_maintenance(state, node, effect, is_forced=is_forced)
    if is_dry_run:
        _show_maintenance(state, node, effect, switch, as_json=as_json)
        return
    if switch is Switch.OFF:

        async def end(pool: ConnectionPool) -> int:
            await broker_modes.set_mode(pool, node, None)
            return await broker_modes.return_leaders(pool, node)

        count = run(bootstrap, end)
        if as_json:
            print_json({"id": node, "mode": ACTIVE, "leaders_returned": count})
        else:
            print(f"Node {node} is active and leads {counted(count, 'more partition')}.")
        return

    async def begin(pool: ConnectionPool) -> list[cluster_state.PartitionState]:
        await broker_modes.set_mode(pool, node, MAINTENANCE)
        return await broker_modes.wait_without_leaders(pool, node)

    led = run(bootstrap, begin)
    if as_json:
        places = [str(one.at) for one in led]
        print_json({"id": node, "mode": MAINTENANCE, "still_led": places})
    elif led:
        names = broker_modes.named([str(one.at) for one in led])
        print(
            f"Node {node} is in maintenance. It still leads {counted(len(led), 'partition')} "
            f"without another in-sync replica: {names}."
        )
    else:
        print(f"Node {node} is in maintenance: it leads nothing and can be stopped.")


def _show_maintenance(
    state: ClusterView, node: int, effect: MaintenanceEffect, switch: Switch, *, as_json: bool
) -> None:
    """What the command would do."""
    from riverrun.admin.balance.broker_modes import named
    from riverrun.admin.tables import counted
    from riverrun.cli.support.output import print_json

    is_on = switch is Switch.ON
    leaders = effect.leaders if is_on else effect.returning
    if as_json:
        print_json(
            {
                "id": node, "mode": state.broker(node).mode, "executed": False, "leaders": leaders,
                "offline": list(effect.offline) if is_on else [],
                "not_writable": list(effect.not_writable) if is_on else [],
            }
        )  # fmt: skip
    elif not is_on:
        print(f"Node {node} would be active and lead {counted(leaders, 'more partition')}.")
    else:
        print(f"Node {node} would hand over {counted(leaders, 'partition')} that it leads.")
        if effect.offline:
            print(f"Unavailable while it is down: {named(effect.offline)}.")
        if effect.not_writable:
            print(f"Not writable with acks=all while it is down: {named(effect.not_writable)}.")


def _check_maintenance(
    state: ClusterView, node: int, effect: MaintenanceEffect, *, is_forced: bool
) -> None:
    from riverrun.admin.balance.broker_modes import named
    from riverrun.admin.broker_settings import MAINTENANCE
    from riverrun.admin.tables import counted

    others = [one for one in state.in_mode(MAINTENANCE) if one != node]
    reasons = []
    if others:
        reasons.append(f"node {', '.join(map(str, others))} is in maintenance already")
    if effect.offline:
        reasons.append(
            f"{counted(len(effect.offline), 'partition')} would be unavailable while node {node} "
            f"is down: {named(effect.offline)}"
        )
    if effect.not_writable:
        reasons.append(
            f"{counted(len(effect.not_writable), 'partition')} would have fewer replicas in sync "
            f"than min.insync.replicas: {named(effect.not_writable)}"
        )
    if reasons and not is_forced:
        ending = " and ".join(f"`riverrun cluster maintenance off {one}`" for one in others)
        first = f"End that first with {ending}, or use" if others else "Use"
        fail("; ".join(reasons) + f"\n  {first} --force to do it nevertheless.")


def decommission(
    node: Annotated[int, typer.Argument(metavar="NODE", show_default=False, help="Id of a node.")],
    is_dry_run: DryRun = False,
    is_agreed: Yes = False,
    throttle: Throttle = None,
    is_watched: Annotated[
        bool,
        typer.Option(
            "--watch/--no-watch",
            help="Wait for the end and show the progress, or return when the moves have begun. The "
            "vote is removed at the end: run the command again.",
        ),
    ] = True,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Move everything away from a node, so that it can be removed.

    The node gets no new replicas and leads nothing. Its replicas are copied to other nodes. When
    it holds nothing, this command removes its vote in the quorum. Then stop the node: the cluster
    unregisters it by itself. After Ctrl-C the moves go on, but the vote stays: run the command
    again before you stop the node. `riverrun cluster recommission` undoes it.

    \b
    riverrun cluster decommission 4 --dry-run
    riverrun cluster decommission 4 --throttle 50MB
    """
    from riverrun.admin.balance import decommissioning
    from riverrun.admin.balance.broker_modes import set_mode
    from riverrun.admin.balance.cluster_state import ask_state
    from riverrun.admin.broker_settings import DECOMMISSIONING
    from riverrun.cli.balance.run_plan import PlanRun
    from riverrun.cli.support.session import run

    rate = parse_rate(throttle)
    command = decommissioning.words(node)
    shown = PlanRun(bootstrap=bootstrap, rate=rate, command=command, as_json=as_json)
    known = run(bootstrap, lambda pool: decommissioning.running(pool, node))
    if known is not None and not is_dry_run:
        if not is_watched:
            fail(f"the plan {known} runs already; `riverrun cluster moves` shows it")
        if not as_json:
            print(f"The plan {known} runs already; it is awaited.", file=sys.stderr)
        shown.watch(known)
    state = run(bootstrap, lambda pool: ask_state(pool, needed=node))
    plan = decommissioning.emptying_plan(state, node)
    missing = decommissioning.unplaced_in_words(plan, node)
    if missing:
        lines = "\n  ".join(missing)
        remedy = decommissioning.remedy(plan.unplaced)
        fail(f"node {node} cannot be emptied:\n  {lines}\n  {remedy}\n  Nothing was changed.")
    shown.show(plan, state.traffic, has_headings=not no_headers)
    if is_dry_run:
        shown.print_json({"id": node, "decommissioned": False})
        return
    confirm(f"Move everything away from node {node}?", is_agreed=is_agreed)
    run(bootstrap, lambda pool: set_mode(pool, node, DECOMMISSIONING))
    if plan.moves and not is_watched:
        started = shown.start(plan)
        shown.print_json({"id": node, "decommissioned": False, "plan": started})
        if not as_json:
            print(
                f"The controller runs the plan {started}. `riverrun cluster moves` shows it.\n"
                f"Run `riverrun {command}` again before you stop the node."
            )
        return
    shown.execute(plan)
    left = run(bootstrap, lambda pool: decommissioning.replicas_left(pool, node))
    if left:
        fail(f"node {node} still holds {left} replicas; run the command again")
    was_voter = run(bootstrap, lambda pool: decommissioning.end_vote(pool, node))
    shown.print_json({"id": node, "decommissioned": True, "was_voter": was_voter})
    if not as_json:
        vote = " Its vote is removed." if was_voter else ""
        print(f"Node {node} holds nothing.{vote} Stop it; the cluster unregisters it by itself.")


def recommission(
    node: Annotated[int, typer.Argument(metavar="NODE", show_default=False, help="Id of a node.")],
    is_dry_run: OnlyShown = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Undo the decommissioning of a node: it may lead and get replicas again.

    A plan that empties the node is cancelled: its moves under way return to the replicas from
    before. Replicas that were moved away return with `riverrun cluster balance`, and the vote with
    `riverrun quorum add`.

    \b
    riverrun cluster recommission 4
    """
    from riverrun.admin.balance import decommissioning
    from riverrun.admin.balance.cluster_state import ask_state
    from riverrun.admin.broker_settings import ACTIVE, MAINTENANCE
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    state = run(bootstrap, lambda pool: ask_state(pool, needed=node))
    if state.broker(node).mode == MAINTENANCE:
        fail(f"node {node} is in maintenance; `riverrun cluster maintenance off` ends that")
    if is_dry_run:
        known = run(bootstrap, lambda pool: decommissioning.running(pool, node))
        mode = state.broker(node).mode
        if as_json:
            print_json({"id": node, "mode": mode, "cancelled_plan": known, "executed": False})
        else:
            ending = "" if known is None else f"The plan {known} would be cancelled. "
            print(f"{ending}Node {node} is {mode} and would be active.")
        return
    cancelled = run(bootstrap, lambda pool: decommissioning.undo(pool, node))
    if as_json:
        print_json({"id": node, "mode": ACTIVE, "cancelled_plan": cancelled, "executed": True})
    else:
        if cancelled is not None:
            print(f"The plan {cancelled} is cancelled.")
        print(f"Node {node} is active. `riverrun cluster balance` gives it replicas.")
