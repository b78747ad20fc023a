"""``riverrun doctor``: finds what is wrong or risky, and says what to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from riverrun.cli.doctor.cluster_checks import CLUSTER
from riverrun.cli.doctor.findings import Finding, bad, note
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    FAILED,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    fail,
)


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The file of a node on this machine."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Check this machine, a node and its cluster for problems.

    The machine: open files, memory, Python and packages. The node of --config: its disk, ports,
    settings and certificates. The cluster: health, versions, clocks, risky settings. Nothing is
    changed. Each finding has a remedy. States are good, note, care and bad; the exit code is 1 if
    one is care or bad.

    \b
    riverrun doctor
    riverrun doctor --config /etc/riverrun/node.toml
    riverrun doctor --json | jq '.findings[] | select(.severity == "bad")'
    """
    from riverrun.cli.doctor.findings import findings_table, verdict
    from riverrun.cli.doctor.local_node import local_findings, read_nodes
    from riverrun.cli.doctor.machine import machine_findings, read_machine
    from riverrun.cli.doctor.software import read_software, software_findings
    from riverrun.cli.support.client_config import ClusterAddress, login_of
    from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
    from riverrun.model.settings import SettingError

    try:
        nodes = read_nodes(config) if config is not None else []
    except SettingError as error:
        fail(str(error), USAGE)
    processes = [node.process for node in nodes if node.process is not None]
    found = [*machine_findings(read_machine(next(iter(processes), None)))]
    found += software_findings(read_software())
    for node in nodes:
        found += local_findings(node)
    is_named = _is_named(bootstrap)
    address = bootstrap
    if not is_named and nodes and nodes[0].client_address is not None:
        login = login_of(bootstrap)
        address = ClusterAddress.of(nodes[0].client_address, properties=login)
        is_named = bool(processes)
    found += _cluster(address, is_named=is_named)
    found = list(dict.fromkeys(found))  # the file and the cluster may have the same problem
    if as_json:
        is_good = not any(one.severity.needs_care for one in found)
        print_json({"good": is_good, "findings": [one.described() for one in found]})
    else:
        print_tables([findings_table(found)], Layout(has_headings=not no_headers))
        if is_terminal():
            print(f"\n{verdict(found)}")
    if any(one.severity.needs_care for one in found):
        raise typer.Exit(FAILED)


def _is_named(bootstrap: str) -> bool:
    """Whether somebody chose the cluster: a flag, a variable or a context."""
    has_context = getattr(bootstrap, "context", None) is not None
    return bootstrap != BOOTSTRAP_DEFAULT or has_context or BOOTSTRAP_VARIABLE in os.environ


def _cluster(bootstrap: str, *, is_named: bool) -> list[Finding]:
    """Errors are findings too: a cluster that does not respond is what doctor is asked about."""
    from riverrun.admin.requests import in_words
    from riverrun.cli.doctor.cluster_checks import cluster_findings
    from riverrun.cli.doctor.cluster_facts import ClusterFacts, ask_cluster
    from riverrun.cli.support.session import open_pool
    from riverrun.client.connection import UnsupportedApi
    from riverrun.client.pool import ClusterUnreachable
    from riverrun.client.security import AuthenticationFailed
    from riverrun.model.errors import KafkaError

    async def ask() -> ClusterFacts:
        async with open_pool(bootstrap) as pool:
            await pool.any_connection()
            return await ask_cluster(pool)

    try:
        return list(cluster_findings(asyncio.run(ask())))
    except AuthenticationFailed as error:
        text = f"the login at {bootstrap} failed: {error}"
        return [bad(CLUSTER, text, "name the user in --command-config FILE")]
    except (ClusterUnreachable, UnsupportedApi, OSError) as error:
        if not is_named:
            text = f"no cluster at {bootstrap}; none was checked"
            return [note(CLUSTER, text, "name one with --bootstrap HOST:PORT")]
        text = f"the cluster at {bootstrap} cannot be asked: {error}"
        return [bad(CLUSTER, text, "start its nodes; their logs name what is missing")]
    except KafkaError as error:
        remedy = "use a user that may describe the cluster"
        return [bad(CLUSTER, f"{bootstrap}: {in_words(error)}", remedy)]
