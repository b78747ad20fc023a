"""``riverrun up``: a cluster on this machine, in the foreground, with one command.

Each node is a process of its own, started from a file that ``riverrun start --config`` takes as
well. The nodes hold one end of a pipe and stop when this program is gone, however it went.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import typer

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
HOST = "127.0.0.1"
OF_EACH_NODE = ("node.id", "log.dirs", "listeners", "http.listener")
"""Settings that this program chooses, and tells others about."""


@dataclass(slots=True)
class Node:
    """One node's process and where it is reached."""

    id: int
    port: int
    data: Path
    config: Path
    draft: Path
    process: subprocess.Popen[bytes] | None = None
    ready: int = -1

    @property
    def client(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.port + 2}"

    def described(self) -> dict[str, object]:
        assert self.process is not None, f"node {self.id} was never started"
        return {
            "id": self.id, "pid": self.process.pid, "client": self.client, "http": self.http,
            "data": str(self.data), "config": str(self.config),
        }  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    nodes: int = typer.Option(1, "--nodes", "-n", min=1, max=100, help="How many nodes."),
    data: Path = typer.Option(
        Path("data"), "--data", help="Directory for everything; kept between runs."
    ),
    port: int = typer.Option(
        9092,
        "--port",
        min=1,
        max=65000,
        help="Client port of the first node; the next two are for controllers and HTTP. "
        "Each further node is 10 higher.",
    ),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A setting for every node; may be repeated."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print one line of JSON when the cluster is ready."
    ),
) -> None:
    """Start a cluster on this machine and run it until Ctrl-C.

    Run it again to go on with the same data.

    \b
    riverrun up
    riverrun up --data /var/tmp/demo --port 19092 --set num.partitions=3
    """
    from riverrun.cli.options import fail, parse_settings

    if nodes > 1:
        fail("clusters of several nodes are not built yet: use --nodes 1", 2)
    flags = parse_settings(settings)
    for name in OF_EACH_NODE:
        if name in flags:
            fail(f"--set {name}: use --port and --data, or riverrun start", 2)
    cluster = [_prepare(data.absolute(), number, port, flags) for number in range(1, nodes + 1)]
    raise typer.Exit(_run(cluster, _environment(flags), as_json=as_json))


# -- Files ----------------------------------------------------------------------------------------


def _prepare(data: Path, number: int, port: int, flags: dict[str, str]) -> Node:
    """Write the node's file; what somebody added to it by hand stays.

    It is a draft until the node is ready: neither a misspelt setting nor a directory that is in use
    may spoil the file that the last run left, or that a running node was started from.
    """
    from riverrun.cli.options import fail
    from riverrun.model.dotted import flattened, not_toml
    from riverrun.model.synonyms import overridden

    first = port + 10 * (number - 1)
    node = Node(
        id=number,
        port=first,
        data=data / f"node-{number}",
        config=data / f"node-{number}.toml",
        draft=data / f"node-{number}.toml.starting",
    )
    try:
        data.mkdir(parents=True, exist_ok=True)
        kept = tomllib.loads(node.config.read_text()) if node.config.exists() else {}
        chosen: dict[str, object] = {
            "node.id": number,
            "log.dirs": str(node.data),
            "listeners": f"PLAINTEXT://{HOST}:{first},CONTROLLER://{HOST}:{first + 1}",
            "http.listener": node.http,
        }
        values = overridden(flattened(kept) | chosen, flags)
        lines = [f"{json.dumps(name)} = {_toml(value)}" for name, value in values.items()]
        node.draft.write_text(
            "# Settings of one node; see docs/settings.md\n" + "\n".join(lines) + "\n"
        )
    except tomllib.TOMLDecodeError as error:
        fail(f"cannot read {node.config}: {not_toml(error)}", 2)
    except OSError as error:
        fail(
            f"cannot write {node.config}: {error.strerror}; choose another directory with --data", 2
        )
    return node


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else json.dumps(str(value))


# -- Processes ------------------------------------------------------------------------------------


def _run(cluster: list[Node], environment: dict[str, str], *, as_json: bool) -> int:
    """Start, wait, and stop everything; gives the exit code."""
    stopping = False
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, request_stop)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    parent_read, parent_write = os.pipe()
    for node in cluster:
        _spawn(node, parent_read, environment)
    os.close(parent_read)
    code = _wait_ready(cluster, wake_read, lambda: stopping)
    if code == 0 and not stopping:
        _announce(cluster, as_json=as_json)
        code = _watch(cluster, wake_read, lambda: stopping)
    _stop(cluster)
    for node in cluster:
        node.draft.unlink(missing_ok=True)
    os.close(parent_write)
    return code


def _environment(flags: Iterable[str]) -> dict[str, str]:
    """Ours, without the variables that would beat in the node what it was told here by flags."""
    from riverrun.model.synonyms import family

    told = [synonym for name in (*OF_EACH_NODE, *flags) for synonym in family(name)]
    hidden = {"RIVERRUN_" + name.upper().replace(".", "_") for name in told}
    return {name: text for name, text in os.environ.items() if name not in hidden}


def _spawn(node: Node, parent: int, environment: dict[str, str]) -> None:
    ready_read, ready_write = os.pipe()
    os.set_inheritable(ready_write, True)
    os.set_inheritable(parent, True)
    command = [
        sys.executable,
        "-m",
        "riverrun.server",
        str(node.draft),
        str(ready_write),
        str(parent),
    ]
    # A session of its own: Ctrl-C reaches this program alone, which then stops the nodes in order.
    node.process = subprocess.Popen(
        command,
        pass_fds=(ready_write, parent),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    os.close(ready_write)
    node.ready = ready_read


def _wait_ready(cluster: list[Node], wake: int, is_stopping: Callable[[], bool]) -> int:
    """0, or the exit code of a node that could not start."""
    import time

    end = time.monotonic() + READY_SECONDS_MAX
    waiting = {node.ready: node for node in cluster}
    while waiting and not is_stopping():
        left = end - time.monotonic()
        readable, _, _ = select.select([*waiting, wake], [], [], max(left, 0))
        if not readable:
            names = ", ".join(str(node.id) for node in waiting.values())
            print(
                f"riverrun: node {names} was not ready within {READY_SECONDS_MAX:.0f} s",
                file=sys.stderr,
            )
            return 1
        if wake in readable:
            os.read(wake, 512)
        for descriptor in readable:
            if descriptor in waiting:
                node = waiting.pop(descriptor)
                said = os.read(descriptor, 16)
                os.close(descriptor)
                if said != b"ready\n":
                    print(
                        f"riverrun: node {node.id} could not start; its log above says why",
                        file=sys.stderr,
                    )
                    return _exit_code(node)
                node.draft.replace(node.config)
    return 0


def _exit_code(node: Node) -> int:
    """How a node ended whose pipe is closed; 2 when it was refused, as ``start`` has it."""
    assert node.process is not None
    try:
        code = node.process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return 1
    return code if code > 0 else 1


def _announce(cluster: list[Node], *, as_json: bool) -> None:
    bootstrap = cluster[0].client
    if as_json:
        print(
            json.dumps({"bootstrap": bootstrap, "nodes": [n.described() for n in cluster]}),
            flush=True,
        )
        return
    riverrun = _ourselves()
    words = "node is" if len(cluster) == 1 else "nodes are"
    print(
        f"\n{len(cluster)} {words} up.\n"
        f"  bootstrap servers   {bootstrap}\n"
        f"  health              http://{cluster[0].http}/health/ready\n"
        f"  metrics             http://{cluster[0].http}/metrics\n"
        f"  data                {cluster[0].data.parent}\n\n"
        f"Try:  echo hello | {riverrun} produce greetings --bootstrap {bootstrap}\n"
        f"      {riverrun} consume greetings --from-beginning --bootstrap {bootstrap}\n"
        "Stop with Ctrl-C; the data stays.\n",
        flush=True,
    )


def _ourselves() -> str:
    """How to call this program from where the person is: ``make up`` puts it on no path."""
    import shutil

    if shutil.which("riverrun"):
        return "riverrun"
    path = str(Path(sys.executable).with_name("riverrun"))
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def _watch(cluster: list[Node], wake: int, is_stopping: Callable[[], bool]) -> int:
    """Until we are told to stop (0), or no node is left (1); a node that ends is shown."""
    alive = list(cluster)
    while not is_stopping():
        select.select([wake], [], [])
        os.read(wake, 512)
        for node in list(alive):
            assert node.process is not None
            code = node.process.poll()
            if code is None or is_stopping():
                continue
            alive.remove(node)
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            print(
                f"riverrun: node {node.id} ended {how}; "
                f"start it again with: riverrun start --config {node.config}",
                file=sys.stderr,
            )
        if not alive:
            return 1
    return 0


def _stop(cluster: list[Node]) -> None:
    running = [node.process for node in cluster if node.process and node.process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            print(f"riverrun: process {process.pid} did not stop; killing it", file=sys.stderr)
            process.kill()
            process.wait()
