"""The files that ``riverrun up`` writes: one of settings for each node, and the first promises.

A file of settings is a draft until its node is ready: neither a misspelt setting nor a directory
that is in use may spoil the file that the last run left, or that a running node was started from.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.cli.support.options import USAGE, fail
from riverrun.model.names import META_PROPERTIES

HOST = "127.0.0.1"
PORTS_APART = 10
VOTERS_MAX = 5
REPLICAS_MAX = 3


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
    log: int = -1

    @property
    def name(self) -> str:
        return f"node-{self.id}"

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


def plan(data: Path, count: int, port: int) -> list[Node]:
    """The nodes that are to run; refuses to run fewer than have run there before."""
    earlier = sorted(data.glob(f"node-*/{META_PROPERTIES}")) if count < 100 else []
    if len(earlier) > count:
        fail(
            f"{data} holds {len(earlier)} nodes, which need each other: start them all with "
            f"--nodes {len(earlier)}, or choose another directory with --data",
            USAGE,
        )
    cluster = [
        Node(
            id=number,
            port=port + PORTS_APART * (number - 1),
            data=data / f"node-{number}",
            config=data / f"node-{number}.toml",
            draft=data / f"node-{number}.toml.starting",
        )
        for number in range(1, count + 1)
    ]
    if count > 1:
        _check_ports(cluster)
    return cluster


def _check_ports(cluster: Sequence[Node]) -> None:
    """Voters know each other by their addresses: they may move one by one, but not all at once."""
    for node in cluster:
        if is_blank(node) or not node.config.exists():
            continue
        with contextlib.suppress(tomllib.TOMLDecodeError):
            written = tomllib.loads(node.config.read_text()).get("listeners", "")
            if written and f"//{node.client}," not in f"{written},":
                fail(
                    f"the nodes in {node.data.parent} know each other by their ports, and "
                    f"{node.name} had {written}: use the same --port as before, or another --data",
                    USAGE,
                )


def voters_of(cluster: Sequence[Node]) -> Sequence[Node]:
    """Who votes on metadata: everybody in a small cluster, and an odd number of them from three
    on, since a fourth voter would bear no more losses than three do.
    """
    count = len(cluster)
    return cluster[: min(VOTERS_MAX, count if count < 3 else count - 1 + count % 2)]


def write_draft(node: Node, cluster: Sequence[Node], flags: Mapping[str, str]) -> None:
    """Write the node's file; what somebody added to it by hand stays."""
    from riverrun.model.dotted import flattened, not_toml
    from riverrun.model.synonyms import overridden

    try:
        node.data.parent.mkdir(parents=True, exist_ok=True)
        kept = flattened(tomllib.loads(node.config.read_text())) if node.config.exists() else {}
        values: dict[str, object] = {**_defaults(len(cluster)), **kept, **_chosen(node, cluster)}
        values = overridden(values, flags)
        lines = [f"{json.dumps(name)} = {_toml(value)}" for name, value in values.items()]
        node.draft.write_text(
            "# Settings of one node; see docs/settings.md\n" + "\n".join(lines) + "\n"
        )
    except tomllib.TOMLDecodeError as error:
        fail(f"cannot read {node.config}: {not_toml(error)}", USAGE)
    except OSError as error:
        fail(
            f"cannot write {node.config}: {error.strerror}; choose another directory with --data",
            USAGE,
        )


def _defaults(count: int) -> dict[str, object]:
    """What makes several nodes worth having, unless the file says otherwise."""
    if count == 1:
        return {}
    replicas = min(REPLICAS_MAX, count)
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "min.insync.replicas": max(1, replicas - 1),
    }


def _chosen(node: Node, cluster: Sequence[Node]) -> dict[str, object]:
    chosen: dict[str, object] = {
        "node.id": node.id,
        "log.dirs": str(node.data),
        "listeners": f"PLAINTEXT://{node.client},CONTROLLER://{HOST}:{node.port + 1}",
        "http.listener": node.http,
    }
    others = [other.client for other in cluster if other is not node]
    if others:
        chosen["seed.nodes"] = ",".join(others)
    if node not in voters_of(cluster):
        chosen["process.roles"] = "broker"
    return chosen


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else json.dumps(str(value))


def is_blank(node: Node) -> bool:
    return not (node.data / META_PROPERTIES).exists()


def prepare_first_start(cluster: Sequence[Node], cluster_id: str | None) -> list[Path]:
    """Promise for all voters that they found a cluster, so that they need not ask each other; gives
    the directories that were made for it.

    Only when all nodes are blank: whoever has data may have a cluster.
    """
    if len(cluster) == 1 or not all(is_blank(node) for node in cluster):
        return []
    import base64

    from riverrun.ports.clock import SystemClock
    from riverrun.ports.randomness import SystemRandomness
    from riverrun.server.formation.promise import promise_for_all

    randomness = SystemRandomness()
    drawn = base64.urlsafe_b64encode(randomness.uuid().bytes).decode().rstrip("=")
    voters = voters_of(cluster)
    directories = [node.data for node in voters]
    try:
        promise_for_all(
            [(node.id, HOST, node.port + 1) for node in voters],
            directories,
            cluster_id=cluster_id or drawn,
            clock=SystemClock(),
            randomness=randomness,
        )
    except OSError as error:
        fail(f"cannot write {directories[0].parent}: {error.strerror or error}", USAGE)
    return directories
