"""``riverrun pipeline pause`` and ``resume``: what Stop and Start of the console do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, FAILED, Bootstrap, fail

if TYPE_CHECKING:
    from riverrun.admin.pipelines import PublishedPipeline
    from riverrun.client.pool import ConnectionPool

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]


def pause(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT) -> None:
    """Stop the queries of a running pipeline after their current batches.

    Its process goes on and waits for `resume`. The command goes through the cluster, so it works
    from every machine, and does the same as Stop in the console. `pipeline stop` also ends the
    process. Exit codes: 1 if the pipeline is not running, 4 if it has never run.

    \b
    riverrun pipeline pause clicks
    """
    from riverrun.admin.pipelines import STOP

    found = _send(name, bootstrap, STOP)
    if not found.can_stop:
        fail(f"pipeline {name} is not running: it is {found.state}", FAILED)
    print(f"{name} stops after its current batches; continue with: riverrun pipeline resume {name}")


def resume(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT) -> None:
    """Start the queries of a paused pipeline again, from where they stopped.

    The process of the pipeline must still run; otherwise use `pipeline run`. Exit codes: 1 if the
    pipeline is not paused, 4 if it has never run.

    \b
    riverrun pipeline resume clicks
    """
    from riverrun.admin.pipelines import START

    found = _send(name, bootstrap, START)
    if not found.can_start:
        text = f"pipeline {name} is not paused: it is {found.state}"
        if not found.has_process:
            file = found.file or f"{name}.toml"
            text += f"\n  On {found.host}, run: riverrun pipeline run {file}"
        fail(text, FAILED)
    print(f"{name} starts")


def _send(name: str, bootstrap: str, command: str) -> PublishedPipeline:
    """Send a command to a pipeline whose state allows it. Returns the state before."""
    from riverrun.admin.pipelines import STOP, pipelines_of, send_command
    from riverrun.admin.requests import NotFound
    from riverrun.admin.state_records import read_states
    from riverrun.cli.support.session import run
    from riverrun.model.names import PIPELINES_TOPIC

    async def ask(pool: ConnectionPool) -> PublishedPipeline:
        now_ms = int(time.time() * 1000)
        found = pipelines_of(await read_states(pool, PIPELINES_TOPIC), now_ms).get(name)
        if found is None:
            raise NotFound(
                f"no pipeline {name} has run on this cluster\n"
                "  Start one with `riverrun pipeline run FILE`."
            )
        if found.can_stop if command == STOP else found.can_start:
            await send_command(pool, name, command, now_ms)
        return found

    return run(bootstrap, ask)
