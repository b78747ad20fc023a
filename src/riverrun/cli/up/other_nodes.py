"""Nodes of the cluster that ``riverrun up`` did not start and does not stop: restarted by hand,
or joined. The user should know about them after Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from riverrun.cli.up.files import NodeFiles
from riverrun.cli.up.messages import ourselves
from riverrun.cli.up.secure import ClusterSecurity

Address = tuple[str, int]

ASK_SECONDS_MAX = 1.0
CALL_SECONDS_MAX = 0.5
"""The user has pressed Ctrl-C and waits."""


def others(
    ours: Sequence[NodeFiles], security: ClusterSecurity | None = None
) -> dict[int, Address]:
    """All nodes known to our running nodes that are not our processes, by id."""
    from riverrun.cli.support.client_config import ClusterAddress, read_properties
    from riverrun.cli.support.session import open_pool
    from riverrun.client.pool import ClusterUnreachable
    from riverrun.model.errors import KafkaError

    async def ask() -> dict[int, Address]:
        places = ",".join(node.client for node in ours)
        login = {} if security is None else read_properties(Path(security.properties))
        address = ClusterAddress.of(places, properties=login)
        async with asyncio.timeout(ASK_SECONDS_MAX), open_pool(address) as pool:
            await pool.metadata(())
            return dict(pool.cluster.nodes)

    try:
        known = asyncio.run(ask()) if ours else {}
    except (ClusterUnreachable, KafkaError, OSError):
        known = {}
    running = [node.id for node in ours]
    return {number: place for number, place in sorted(known.items()) if number not in running}


def still_there(found: Mapping[int, Address], cluster: Sequence[NodeFiles]) -> dict[int, Address]:
    """The ones that respond now, and nodes of ours that were restarted by hand. Call it after
    our own processes have ended, because until then they hold their ports."""
    from riverrun.client.pool import parse_bootstrap

    own = {node.id: parse_bootstrap(node.client)[0] for node in cluster}
    places = dict(sorted({**own, **found}.items()))
    return {number: place for number, place in places.items() if _answers(place)}


def _answers(address: Address) -> bool:
    try:
        with socket.create_connection(address, CALL_SECONDS_MAX):
            return True
    except OSError:
        return False


def in_words(there: Mapping[int, Address], cluster: Sequence[NodeFiles]) -> str:
    """One line: which nodes keep running, and how to stop them."""
    files = {node.id: node.config for node in cluster}
    named = ", ".join(f"{number} at {host}:{port}" for number, (host, port) in there.items())
    is_one = len(there) == 1
    text = (
        f"{'node' if is_one else 'nodes'} {named} {'was' if is_one else 'were'} started elsewhere "
        f"and {'keeps' if is_one else 'keep'} running; stop {'it' if is_one else 'each'} with "
        "Ctrl-C where it was started"
    )
    known = [f"{ourselves()} stop --config {files[n]}" for n in there if n in files]
    return f"{text}, or: {'; '.join(known)}" if known else f"{text}, or by SIGTERM"
