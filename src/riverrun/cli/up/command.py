"""``riverrun up``: a cluster on this machine, in the foreground, with one command.

Each node is a process, started from a file that ``riverrun start --config`` accepts as well.
``files`` writes these files, ``ports`` checks the ports, ``processes`` starts and stops the nodes,
``messages`` prints the result, and ``other_nodes`` finds nodes that keep running.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from riverrun.cli.up.files import NodeFiles
    from riverrun.cli.up.messages import Announcement

OF_EACH_NODE = ("node.id", "log.dirs", "listeners", "http.listener")
"""Settings chosen by this program and printed for the user."""
OF_SEVERAL_NODES = ("seed.nodes", "process.roles")
"""Settings chosen for more than one node."""
AUTO_JOIN = "RIVERRUN_CONTROLLER_QUORUM_AUTO_JOIN_ENABLE"


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    nodes: int = typer.Option(3, "--nodes", "-n", min=1, max=100, help="How many nodes."),
    data: Path | None = typer.Option(
        None, "--data", help="Directory for everything; kept between runs.  [default: data]"
    ),
    is_ephemeral: bool = typer.Option(
        False,
        "--ephemeral",
        help="Keep the data in a temporary directory and remove it at the end.",
    ),
    port: int = typer.Option(
        9092,
        "--port",
        min=0,
        max=64000,
        help="Client port of the first node; the next two are for controllers and HTTP. "
        "Each further node is 10 higher. 0: free ports, or those of the existing data.",
    ),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A setting for every node; may be repeated."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print one line of JSON when the cluster is ready."
    ),
    parent_fd: int | None = typer.Option(
        None,
        "--parent-fd",
        min=0,
        hidden=True,
        help="Stop at the end of this pipe, whose other end the parent process holds.",
    ),
) -> None:
    """Start a cluster on this machine and run it until Ctrl-C.

    Run it again to continue with the same data. If a node ends, the others keep running.

    \b
    riverrun up
    riverrun up --nodes 1 --data /var/tmp/demo --port 19092 --set num.partitions=3
    riverrun up --nodes 1 --port 0 --ephemeral --json
    """
    import shutil
    import tempfile

    from riverrun.cli.support.options import USAGE, fail, parse_settings
    from riverrun.cli.up.messages import Announcement

    flags = parse_settings(settings)
    chosen = OF_EACH_NODE if nodes == 1 else (*OF_EACH_NODE, *OF_SEVERAL_NODES)
    for name in chosen:
        if name in flags:
            fail(f"--set {name}: use --port and --data, or riverrun start", USAGE)
    _check_security(flags)
    if is_ephemeral and data is not None:
        fail("--ephemeral: the data is in a temporary directory, so --data is not used", USAGE)
    directory = tempfile.mkdtemp(prefix="riverrun-up-") if is_ephemeral else str(data or "data")
    try:
        output = Announcement(as_json=as_json, is_ephemeral=is_ephemeral)
        code = _up(Path(directory).absolute(), nodes, port, flags, chosen, output, parent_fd)
    finally:
        if is_ephemeral:
            shutil.rmtree(directory, ignore_errors=True)
    raise typer.Exit(code)


def _up(
    data: Path,
    nodes: int,
    port: int,
    flags: dict[str, str],
    chosen: Sequence[str],
    output: Announcement,
    parent_fd: int | None,
) -> int:
    from riverrun.cli.support.options import USAGE, fail
    from riverrun.cli.up.files import earlier_port, plan, prepare_first_start, write_draft
    from riverrun.cli.up.messages import ourselves
    from riverrun.cli.up.ports import held_free_ports, refusal, taken_ports

    with contextlib.ExitStack() as held:
        if port == 0:
            port = earlier_port(data) or held.enter_context(held_free_ports(nodes))
        cluster = plan(data, nodes, port)
        if taken := taken_ports(cluster):
            fail(refusal(taken, cluster, ourselves()), USAGE)
        environments = _environments(cluster, [*chosen, *flags])
        for node in cluster:
            write_draft(node, cluster, flags)
        prepared = prepare_first_start(cluster, flags.get("cluster.id"))
        return _run(cluster, environments, prepared, output, parent_fd)


def _check_security(flags: dict[str, str]) -> None:
    """Refuse security settings before anything is written."""
    from riverrun.cli.support.options import USAGE, fail
    from riverrun.model.security import SecurityNotSupported, check_security

    try:
        check_security(flags)
    except SecurityNotSupported as error:
        fail(str(error), USAGE)


def _run(
    cluster: Sequence[NodeFiles],
    environments: dict[int, dict[str, str]],
    prepared: Sequence[Path],
    output: Announcement,
    parent_fd: int | None,
) -> int:
    """Start, wait, and stop everything; returns the exit code."""
    from riverrun.cli.up import other_nodes as elsewhere
    from riverrun.cli.up.messages import announce
    from riverrun.cli.up.processes import Processes

    processes = Processes(
        cluster, environments, is_ephemeral=output.is_ephemeral, parent_fd=parent_fd
    )
    processes.start()
    serving, code = processes.wait_ready()
    if serving and not processes.is_stopping:
        announce(serving, processes.missing(serving), output)
        code = processes.watch()
    found = elsewhere.others(cluster) if processes.is_interrupted else {}
    processes.stop()
    if serving and (there := elsewhere.still_there(found, cluster)):
        processes.say(elsewhere.in_words(there, cluster))
    for node in cluster:
        node.draft.unlink(missing_ok=True)
    if prepared and not serving:
        from riverrun.server.formation.promise import withdraw

        withdraw(prepared)
    return code


def _environments(cluster: Sequence[NodeFiles], told: Iterable[str]) -> dict[int, dict[str, str]]:
    """Environments by node: ours, without variables that would override the node's flags.

    A blank node beside nodes with a cluster joins it as a voter.
    """
    from riverrun.cli.up.files import is_blank

    common = _environment(told)
    blank = [node for node in cluster if is_blank(node)]
    grows = [] if len(blank) == len(cluster) else blank
    return {node.id: common | ({AUTO_JOIN: "true"} if node in grows else {}) for node in cluster}


def _environment(told: Iterable[str]) -> dict[str, str]:
    from riverrun.model.setting_names import family

    names = [synonym for name in (*OF_EACH_NODE, *told) for synonym in family(name)]
    hidden = {"RIVERRUN_" + name.upper().replace(".", "_") for name in names}
    return {name: text for name, text in os.environ.items() if name not in hidden}
