"""``riverrun topics move`` and ``topics rebalance``, and the change of a replication factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.balance.command import DryRun, Throttle, parse_rate
from riverrun.cli.support.completion import topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    Yes,
    confirm,
    fail,
    parse_topics,
)

if TYPE_CHECKING:
    from riverrun.admin.balance.cluster_state import ClusterView
    from riverrun.placement.planner.plan import Plan


def register(topics: typer.Typer) -> None:
    topics.command("move")(move)
    topics.command("rebalance")(rebalance)


def move(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:0,1,...]", autocompletion=topic_names, show_default=False),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NODES",
            show_default=False,
            help="The new replicas, such as 1,2,3. The first one is the preferred leader.",
        ),
    ],
    is_dry_run: DryRun = False,
    is_agreed: Yes = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Move partitions to the given nodes, and wait for the end. Ctrl-C ends only the waiting.

    \b
    riverrun topics move orders:0 --to 2,3,4
    riverrun topics move orders --to 1,2,3 --throttle 50MB
    """
    from riverrun.admin.balance.topic_plans import move_plan

    ((name, indexes),) = parse_topics([topic], option="").items()
    nodes = [part.strip() for part in to.split(",")]
    if not all(node.isdigit() for node in nodes) or len(set(nodes)) < len(nodes):
        fail(f"--to {to}: expected ids of different nodes, such as 1,2,3", USAGE)
    target = tuple(int(node) for node in nodes)

    wish = PlanWish(
        command=f"topics move {topic} --to {to}",
        throttle=throttle,
        is_dry_run=is_dry_run,
        is_agreed=is_agreed,
    )
    run_topic_plan(
        bootstrap,
        lambda state: move_plan(state, name, indexes, target),
        wish,
        as_json=as_json,
        has_headings=not no_headers,
    )


def rebalance(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, show_default=False)
    ],
    is_dry_run: DryRun = False,
    is_agreed: Yes = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Spread the replicas and leaders of one topic evenly, and leave the other topics alone.

    \b
    riverrun topics rebalance orders --dry-run
    """
    from riverrun.admin.balance.topic_plans import rebalance_plan

    wish = PlanWish(
        command=f"topics rebalance {topic}",
        throttle=throttle,
        is_dry_run=is_dry_run,
        is_agreed=is_agreed,
    )
    run_topic_plan(
        bootstrap,
        lambda state: rebalance_plan(state, topic),
        wish,
        as_json=as_json,
        has_headings=not no_headers,
    )


def change_replicas(
    bootstrap: str,
    topic: str,
    replicas: int,
    throttle: str | None,
    *,
    is_dry_run: bool,
    is_quiet: bool,
) -> dict[str, object]:
    """Change the replication factor of a topic, and wait for the end; returns the plan as JSON."""
    from riverrun.admin.balance.topic_plans import resize_plan

    return run_topic_plan(
        bootstrap,
        lambda state: resize_plan(state, topic, replicas),
        PlanWish(
            command=f"topics alter {topic} --replicas {replicas}",
            throttle=throttle,
            is_dry_run=is_dry_run,
        ),
        is_quiet=is_quiet,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWish:
    """What the user wants to happen with a plan."""

    command: str
    throttle: str | None = None
    is_dry_run: bool = False
    is_agreed: bool = True


def run_topic_plan(
    bootstrap: str,
    make: Callable[[ClusterView], Plan],
    wish: PlanWish,
    *,
    as_json: bool = False,
    has_headings: bool = True,
    is_quiet: bool = False,
) -> dict[str, object]:
    """Make a plan from the state of the cluster, show it, ask, and run it. ``is_quiet``: another
    command reports the result, which is returned."""
    from riverrun.admin.balance.cluster_state import ask_state
    from riverrun.cli.balance.run_plan import PlanRun
    from riverrun.cli.support.session import run

    rate = parse_rate(wish.throttle)
    state = run(bootstrap, ask_state)

    async def planned(_: object) -> Plan:
        return make(state)

    plan = run(bootstrap, planned)
    shown = PlanRun(
        bootstrap=bootstrap, rate=rate, command=wish.command, as_json=as_json or is_quiet
    )
    if not plan.moves and not (as_json or is_quiet):
        print("Nothing to move.")
        return {}
    shown.show(plan, state.traffic, has_headings=has_headings)
    if plan.moves and not wish.is_dry_run:
        confirm("Start these moves?", is_agreed=wish.is_agreed)
        shown.execute(plan)
    if not is_quiet:
        shown.print_json({})
    return shown.described
