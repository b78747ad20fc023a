"""``riverrun up``: a cluster on this machine, with one command, in the foreground or detached.

Each node is a process, started from a file that ``riverrun start --config`` accepts as well.
``files`` writes these files, ``ports`` checks the ports, ``supervisor`` runs the nodes,
``messages`` prints the result, and ``other_nodes`` finds nodes that keep running. ``detached``
starts this command again in the background, ``state`` records it in the data directory, and
``status`` and ``down`` find it there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from riverrun.cli.up.files import NodeFiles
    from riverrun.cli.up.secure import ClusterSecurity
    from riverrun.cli.up.state import SupervisedNode

OF_EACH_NODE = ("node.id", "log.dirs", "listeners", "http.listener")
"""Settings chosen by this program and printed for the user."""
OF_SEVERAL_NODES = ("seed.nodes", "process.roles")
"""Settings chosen for more than one node."""
AUTO_JOIN = "RIVERRUN_CONTROLLER_QUORUM_AUTO_JOIN_ENABLE"


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    context: typer.Context,
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
    wants_security: bool = typer.Option(
        False,
        "--secure",
        help="Protect the cluster: TLS, logins, access control, and a first user. Directories of "
        "a secure cluster stay secure without it.",
    ),
    detach: bool = typer.Option(
        False,
        "--detach",
        "-d",
        help="Return when the cluster is ready. Logs go to files in the data directory; "
        "`riverrun down` stops it.",
    ),
    show_status: bool = typer.Option(
        False, "--status", help="Show the cluster that runs with --data, and start nothing."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print one line of JSON when the cluster is ready."
    ),
    is_detached: bool = typer.Option(
        False, "--detached", hidden=True, help="Used by --detach in the background process."
    ),
    parent_fd: int | None = typer.Option(
        None,
        "--parent-fd",
        min=0,
        hidden=True,
        help="Stop at the end of this pipe, whose other end the parent process holds.",
    ),
    node_module: str = typer.Option(
        "riverrun.server",
        "--node-module",
        hidden=True,
        help="The module that runs a node, with the arguments of riverrun.server.",
    ),
) -> None:
    """Start a cluster on this machine and run it until Ctrl-C.

    Run it again to continue with the same data. If a node ends, the others keep running.

    \b
    riverrun up
    riverrun up --nodes 1 --data /var/tmp/demo --port 19092 --set num.partitions=3
    riverrun up --nodes 1 --port 0 --ephemeral --json
    riverrun up -d && riverrun up --status && riverrun down
    riverrun up --secure

    With -d it exits with 0 when the cluster is ready, and with 1 if no node could start. If the
    cluster runs already, it exits as --status does: with 0 if all nodes run, 1 if one does not,
    and 4 if no cluster runs. It exits with 2 if the running cluster does not have the given
    options.
    """
    from riverrun.cli.support.options import USAGE, fail, parse_settings

    flags = parse_settings(settings)
    chosen = OF_EACH_NODE if nodes == 1 else (*OF_EACH_NODE, *OF_SEVERAL_NODES)
    for name in chosen:
        if name in flags:
            fail(f"--set {name}: use --port and --data, or riverrun start", USAGE)
    directory = Path(data or "data").absolute()
    if show_status:
        from riverrun.cli.up.status import print_status

        raise typer.Exit(print_status(directory, as_json=as_json))
    if flags:
        _check_flags(flags)
    if is_ephemeral and data is not None:
        fail("--ephemeral: the data is in a temporary directory, so --data is not used", USAGE)
    if detach:
        from riverrun.cli.up.detached import Wanted, start_detached

        wanted = Wanted(
            nodes=nodes if _is_given(context, "nodes") else None,
            port=port if _is_given(context, "port") else None,
            is_secure=wants_security,
            settings=flags,
        )
        words = ["--nodes", str(nodes), "--port", str(port)]
        words += [word for text in settings for word in ("--set", text)]
        words += ["--secure"] if wants_security else []
        words += ["--ephemeral"] if is_ephemeral else ["--data", str(directory)]
        running = None if is_ephemeral else directory
        raise typer.Exit(start_detached(words, running, wanted, as_json=as_json))
    plan = _Plan(
        nodes=nodes,
        wants_security=wants_security,
        port=port,
        flags=flags,
        chosen=chosen,
        as_json=as_json,
        is_ephemeral=is_ephemeral,
        is_detached=is_detached,
        parent_fd=parent_fd,
        node_module=node_module,
    )
    raise typer.Exit(_up_ephemeral(plan) if is_ephemeral else _up(directory, plan))


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_flags(flags: dict[str, str]) -> None:
    """Report a wrong setting once, instead of once per node."""
    from riverrun.cli.support.options import USAGE, fail
    from riverrun.model.settings import SettingError
    from riverrun.server.settings import check_flags

    try:
        check_flags(flags)
    except SettingError as error:
        fail(f"--set: {error}", USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The parsed options."""

    nodes: int
    wants_security: bool
    port: int
    flags: dict[str, str]
    chosen: Sequence[str]
    as_json: bool
    is_ephemeral: bool
    is_detached: bool
    parent_fd: int | None
    node_module: str


def _up_ephemeral(plan: _Plan) -> int:
    import shutil
    import tempfile

    from riverrun.cli.up.state import EPHEMERAL_PREFIX

    directory = tempfile.mkdtemp(prefix=EPHEMERAL_PREFIX)
    try:
        return _up(Path(directory), plan)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _up(data: Path, plan: _Plan) -> int:
    from riverrun.cli.support.options import USAGE, fail
    from riverrun.cli.up import files, secure
    from riverrun.cli.up.messages import ourselves, runs_already
    from riverrun.cli.up.ports import held_free_ports, refusal, taken_ports
    from riverrun.cli.up.state import supervised, supervisor_of

    if (supervisor := supervisor_of(data)) is not None:
        fail(runs_already(data, supervisor), USAGE)
    with contextlib.ExitStack() as held:
        port = plan.port
        if port == 0:
            port = files.earlier_port(data) or held.enter_context(held_free_ports(plan.nodes))
        cluster = files.plan(data, plan.nodes, port)
        if taken := taken_ports(cluster):
            fail(refusal(taken, cluster, ourselves()), USAGE)
        environments = _environments(cluster, [*plan.chosen, *plan.flags])
        files.make_directory(data)
        try:
            held.enter_context(supervised(data))
        except BlockingIOError:
            fail(runs_already(data, supervisor_of(data)), USAGE)
        except OSError as error:
            files.fail_to_write(data, error)
        security = None
        if plan.wants_security or secure.is_secure(data):
            files.check_may_be_secured(cluster, data)
            security = secure.prepare(data, [node.name for node in cluster], files.HOST)
        for node in cluster:
            files.write_draft(node, cluster, plan.flags, is_secure=security is not None)
        prepared = files.prepare_first_start(cluster, plan.flags.get("cluster.id"))
        return _run(data, cluster, environments, prepared, plan, security)


def _run(
    data: Path,
    cluster: Sequence[NodeFiles],
    environments: dict[int, dict[str, str]],
    prepared: Sequence[Path],
    plan: _Plan,
    security: ClusterSecurity | None,
) -> int:
    """Start, wait, and stop everything; returns the exit code."""
    from riverrun.cli.supervision.node_output import FileOutput, TerminalOutput
    from riverrun.cli.supervision.processes import NodeLaunch
    from riverrun.cli.up.messages import announcement
    from riverrun.cli.up.state import LOG_FILE, UpState
    from riverrun.cli.up.supervisor import Supervisor

    has_several = len(cluster) > 1
    output: FileOutput | TerminalOutput = TerminalOutput(
        [node.id for node in cluster], has_pipes=has_several, is_prefixed=has_several
    )
    if plan.is_detached:
        paths = {node.id: node.log_file for node in cluster}
        output = FileOutput(data / LOG_FILE, paths, is_ephemeral=plan.is_ephemeral)
    state = UpState(
        pid=os.getpid(),
        data=str(data),
        started_ms=time.time_ns() // 1_000_000,
        is_detached=plan.is_detached,
        is_ephemeral=plan.is_ephemeral,
        security={} if security is None else security.as_row(),
    )
    launch = NodeLaunch(module=plan.node_module, parent_fd=plan.parent_fd)
    supervisor = Supervisor(cluster, environments, output, launch, is_ephemeral=plan.is_ephemeral)
    processes = supervisor.processes

    def states(nodes: Sequence[NodeFiles]) -> list[SupervisedNode]:
        has_log = plan.is_detached
        return [node.state(processes.process_id(node.id), has_log_file=has_log) for node in nodes]

    supervisor.start()
    state = replace(state, nodes=states(cluster))
    state.write()
    serving, code = supervisor.wait_ready()
    if serving and not processes.is_stopping:
        missing = supervisor.missing(serving)
        state = replace(state, is_ready=True, nodes=states(serving), missing=missing)
        state.write()
        print(announcement(state, as_json=plan.as_json), flush=True)
        if isinstance(output, FileOutput):
            processes.release_parent()
            output.detach()
        code = supervisor.watch()
    from riverrun.cli.up import other_nodes as elsewhere  # needs asyncio, which the start does not

    ours = [node for node in cluster if processes.is_running(node.id)]
    found = elsewhere.others(ours, security) if processes.is_interrupted else {}
    supervisor.stop()
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
