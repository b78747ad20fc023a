"""The properties that Apache's ``kafka-metadata-quorum add-controller`` reads.

The tool runs on the machine of the node, because it reads the directory id from the data. It
connects to the controllers as the node does, or to the brokers with the login of a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riverrun.admin.broker_settings import ask_broker_settings
from riverrun.admin.quorum.admin import LISTENER, find_candidate
from riverrun.admin.quorum.report import ask_quorum
from riverrun.admin.requests import NotFound
from riverrun.client.pool import ConnectionPool
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from riverrun.wire.messages.describe_log_dirs_response import DescribeLogDirsResponse

PLAINTEXT: Final = "PLAINTEXT"
PROTOCOLS: Final = "listener.security.protocol.map"
STORES: Final = ("ssl.keystore", "ssl.truststore")
SETTINGS: Final = (PROTOCOLS, *(f"{store}.location" for store in STORES))
LOGIN: Final = "the lines of your --command-config file"


async def tool_properties(
    pool: ConnectionPool, node: str, data: str | None, *, has_login: bool
) -> str:
    """``has_login``: clients of the brokers have settings for TLS or a login, which may hold a
    password and are not printed."""
    candidate = await find_candidate(pool, node)
    directory = data or await _directory(pool, candidate.id)
    controllers = ",".join(r.endpoint for r in (await ask_quorum(pool)).voters if r.endpoint)
    rows = (await ask_broker_settings(pool, [candidate.id], SETTINGS)).get(candidate.id)
    settings = None if rows is None else {name: row.value or "" for name, row in rows.items()}
    protocol = None if settings is None else _protocol(settings.get(PROTOCOLS, ""))
    shown = protocol or PLAINTEXT
    lines = [
        "process.roles=broker,controller",
        f"node.id={candidate.id}",
        f"log.dirs={directory}",
        f"listeners={LISTENER}://{candidate.host}:{candidate.port}",
        f"controller.listener.names={LISTENER}",
        f"listener.security.protocol.map={LISTENER}:{shown},{PLAINTEXT}:{PLAINTEXT}",
        f"controller.quorum.bootstrap.servers={controllers}",
    ]
    if protocol is None:
        lines += _unknown_protocol() if has_login else []
    elif protocol != PLAINTEXT:
        lines += _secure(protocol, settings or {}, has_login=has_login)
    elif has_login:
        lines += [f"# With --bootstrap-server, append {LOGIN}: the tool logs in with them."]
    return "\n".join(lines) + "\n"


def _protocol(protocols: str) -> str:
    """The protocol of the controller listener: of its name, unless the setting maps it."""
    pairs = [pair.strip().partition(":") for pair in protocols.split(",")]
    mapped = {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}
    return mapped.get(LISTENER, PLAINTEXT)


def _secure(protocol: str, settings: Mapping[str, str], *, has_login: bool) -> list[str]:
    otherwise = f"replace them by {LOGIN}" if has_login else "leave them out"
    lines = [
        "# The next lines are for --bootstrap-controller: the identity of the node. For "
        f"--bootstrap-server, {otherwise}.",
        f"security.protocol={protocol}",
    ]
    for store in STORES:
        if location := settings.get(f"{store}.location"):
            lines += [f"{store}.type=PEM", f"{store}.location={location}"]
        elif protocol.endswith("SSL"):
            lines.append(f"# Add {store}.type and {store}.location of its {LISTENER} listener.")
    if protocol.startswith("SASL"):
        lines.append(
            "# Add sasl.mechanism and sasl.jaas.config, with which the node logs in to the "
            f"{LISTENER} listeners of others."
        )
    return lines


def _unknown_protocol() -> list[str]:
    """Of a node that is no broker, and does not report its settings."""
    return [
        f"# With --bootstrap-server, append {LOGIN}: the tool logs in with them.",
        "# With --bootstrap-controller, append the settings security.protocol, ssl.* and sasl.* "
        f"with which the node connects to the {LISTENER} listeners of others.",
    ]


async def _directory(pool: ConnectionPool, node: int) -> str:
    answer: DescribeLogDirsResponse = await pool.request_node(
        node, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=())
    )
    if not answer.results:
        raise NotFound(f"node {node} does not report its data directory: give --data")
    return answer.results[0].log_dir
