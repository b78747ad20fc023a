"""The files that ``riverrun up`` writes: the settings of each node, and the formation promises.

A settings file is a draft until its node is ready. A misspelt setting or a directory in use must
not spoil the file of the last run or of a running node.
"""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from riverrun.cli.support.options import USAGE, fail
from riverrun.cli.up.secure import settings_of
from riverrun.cli.up.state import SupervisedNode
from riverrun.model.names import META_PROPERTIES

HOST = "127.0.0.1"
PORTS_APART = 10
VOTERS_MAX = 5
REPLICAS_MAX = 3


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """One node's files and addresses."""

    id: int
    port: int
    data: Path
    config: Path
    draft: Path

    @property
    def name(self) -> str:
        return f"node-{self.id}"

    @property
    def client(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.port + 2}"

    @property
    def log_file(self) -> Path:
        """The log of the node, if the cluster is detached."""
        return self.data.with_name(f"{self.name}.log")

    def state(self, pid: int, *, has_log_file: bool) -> SupervisedNode:
        return SupervisedNode(
            id=self.id,
            pid=pid,
            client=self.client,
            http=self.http,
            data=str(self.data),
            config=str(self.config),
            log=str(self.log_file) if has_log_file else None,
        )


def plan(data: Path, count: int, port: int) -> list[NodeFiles]:
    """The nodes to run. Refuses to run fewer than before."""
    earlier = sorted(data.glob(f"node-*/{META_PROPERTIES}")) if count < 100 else []
    if len(earlier) > count:
        fail(
            f"{data} holds {len(earlier)} nodes, which need each other: start them all with "
            f"--nodes {len(earlier)}, or choose another directory with --data",
            USAGE,
        )
    cluster = [
        NodeFiles(
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


def earlier_port(data: Path) -> int | None:
    """The client port of the first node in an earlier run with this directory."""
    config = data / "node-1.toml"
    if not config.exists() or not (data / "node-1" / META_PROPERTIES).exists():
        return None
    with contextlib.suppress(tomllib.TOMLDecodeError):
        written = re.match(
            rf"(?:PLAINTEXT|SASL_SSL)://{re.escape(HOST)}:(\d+),",
            str(tomllib.loads(config.read_text()).get("listeners", "")),
        )
        return int(written[1]) if written else None
    return None


def _check_ports(cluster: Sequence[NodeFiles]) -> None:
    """Voters know each other by address: they may move one by one, but not all at once."""
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


def voters_of(cluster: Sequence[NodeFiles]) -> Sequence[NodeFiles]:
    """The voters: all nodes of a small cluster, and an odd number from three on, because a
    fourth voter tolerates no more failures than three."""
    count = len(cluster)
    return cluster[: min(VOTERS_MAX, count if count < 3 else count - 1 + count % 2)]


def make_directory(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail_to_write(data, error)


def fail_to_write(path: Path, error: OSError) -> NoReturn:
    fail(f"cannot write {path}: {error.strerror}; choose another directory with --data", USAGE)


def check_may_be_secured(cluster: Sequence[NodeFiles], data: Path) -> None:
    """A plain cluster cannot be secured by a flag: its nodes know each other's plain addresses."""
    from riverrun.cli.up.secure import is_secure

    if not is_secure(data) and any(not is_blank(node) for node in cluster):
        fail(
            f"{data} holds a cluster without security; use --secure with a new directory "
            "(`riverrun docs security` explains how to secure a running cluster)",
            USAGE,
        )


def write_draft(
    node: NodeFiles,
    cluster: Sequence[NodeFiles],
    flags: Mapping[str, str],
    *,
    is_secure: bool = False,
) -> None:
    """Write the node's file and keep settings that were added by hand."""
    from riverrun.model.setting_names import flattened, not_toml, overridden

    try:
        kept = flattened(tomllib.loads(node.config.read_text())) if node.config.exists() else {}
        values: dict[str, object] = {**_defaults(len(cluster)), **kept, **_chosen(node, cluster)}
        if is_secure:
            values |= settings_of(node, cluster, node.data.parent, HOST)
        values = overridden(values, flags)
        lines = [f"{json.dumps(name)} = {_toml(value)}" for name, value in values.items()]
        node.draft.write_text(
            "# Settings of one node; `riverrun docs settings` lists all\n" + "\n".join(lines) + "\n"
        )
    except tomllib.TOMLDecodeError as error:
        fail(f"cannot read {node.config}: {not_toml(error)}", USAGE)
    except OSError as error:
        fail_to_write(node.config, error)


def _defaults(count: int) -> dict[str, object]:
    """Defaults for a cluster on one machine, unless the file overrides them.

    The initial rebalance delay is for groups with many members. Tests and demos would only wait.
    """
    values: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
    if count == 1:
        return values
    replicas = min(REPLICAS_MAX, count)
    return {
        **values,
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "min.insync.replicas": max(1, replicas - 1),
    }


def _chosen(node: NodeFiles, cluster: Sequence[NodeFiles]) -> dict[str, object]:
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


def is_blank(node: NodeFiles) -> bool:
    return not (node.data / META_PROPERTIES).exists()


def prepare_first_start(cluster: Sequence[NodeFiles], cluster_id: str | None) -> list[Path]:
    """Store the promise of all voters to form a cluster, so that they need not contact each other.
    Returns the directories that were created.

    Only when all nodes are blank: a node with data may belong to a cluster.
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
