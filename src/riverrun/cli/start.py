"""``riverrun start``: one node in the foreground, from a file, the environment and flags; with
``--processes`` the brokers of a whole host (``cli.host``)."""

from __future__ import annotations

import os
from pathlib import Path

import typer

LOOPBACK = ("localhost", "127.", "::1")
CONTROLLER_ABOVE = 1
HTTP_ABOVE = 2
"""Default ports relative to the client port: 9092, 9093, 9094."""


def register(app: typer.Typer) -> None:
    app.command("start")(start)


def start(
    config: Path | None = typer.Option(
        None,
        "--config",
        "-c",
        help="File with settings: TOML, such as those written by `riverrun up`, or "
        "a server.properties of Apache Kafka.",
    ),
    node_id: int | None = typer.Option(None, "--node-id", help="Id of this node (node.id)."),
    data: Path | None = typer.Option(
        None, "--data", "--data-dir", help="Directory for this node's data (log.dirs)."
    ),
    advertised_addr: str | None = typer.Option(
        None,
        "--advertised-addr",
        metavar="HOST:PORT",
        help="Where clients and other nodes reach this node. It listens on that port and the next "
        "two, unless `listeners` is set.",
    ),
    seed_nodes: str | None = typer.Option(
        None,
        "--seed-nodes",
        metavar="HOST:PORT,...",
        help="Other nodes of the cluster, or a DNS name of all of them (seed.nodes).",
    ),
    bootstrap_expect: int | None = typer.Option(
        None,
        "--bootstrap-expect",
        min=1,
        help="Number of controllers that form the cluster, if the seed is a DNS name "
        "(bootstrap.expect).",
    ),
    default_replication_factor: int | None = typer.Option(
        None,
        "--default-replication-factor",
        min=1,
        help="Replicas of each partition, unless a topic sets it (default.replication.factor).",
    ),
    roles: str | None = typer.Option(
        None, "--roles", help="broker, controller, or both, separated by a comma (process.roles)."
    ),
    rack: str | None = typer.Option(
        None, "--rack", help="Rack or zone; replicas are spread over racks (broker.rack)."
    ),
    processes: str | None = typer.Option(
        None,
        "--processes",
        metavar="N|auto",
        help="Run N brokers of this host as one unit, or one per usable core (processes). The "
        "first has the given id, ports and roles. Each further one is a broker with an id 1000 "
        "higher and ports 10 higher. Their data is in node-ID below the data directories.",
    ),
    cluster_id: str | None = typer.Option(
        None, "--cluster-id", help="Join or form this cluster and no other (cluster.id)."
    ),
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="Any setting; may be repeated. `riverrun docs settings` lists all.",
    ),
) -> None:
    """Start one node, or all of a host, until Ctrl-C or SIGTERM.

    Settings come from --config, then from RIVERRUN_* environment variables, then from flags; later
    ones win. A node without data joins the cluster of its seeds. If all seeds respond and have no
    cluster either, they form one.

    \b
    riverrun start --config data/node-1.toml
    riverrun start --config /etc/kafka/server.properties
    riverrun start --node-id 1 --advertised-addr node1:9092 --seed-nodes node2:9092,node3:9092
    riverrun start --node-id 1 --advertised-addr node1:9092 --processes auto --data /d1,/d2
    RIVERRUN_LOG_LEVEL=debug riverrun start --data /var/tmp/demo --set num.partitions=3
    """
    from riverrun.cli.support.options import USAGE, fail, parse_settings
    from riverrun.model.settings import SettingError
    from riverrun.server.settings import settings_texts

    flags = parse_settings(settings)
    given = {
        "node.id": node_id,
        "log.dirs": data,
        "seed.nodes": seed_nodes,
        "bootstrap.expect": bootstrap_expect,
        "default.replication.factor": default_replication_factor,
        "process.roles": roles,
        "broker.rack": rack,
        "processes": processes,
        "cluster.id": cluster_id,
    }
    flags |= {name: str(value) for name, value in given.items() if value is not None}
    try:
        texts = settings_texts(config, flags, os.environ)
    except SettingError as error:
        fail(str(error), USAGE)
    if advertised_addr is not None:
        texts = reached_at(advertised_addr, texts)
    if texts.get("processes"):
        from riverrun.cli.host.start import run_unit

        raise typer.Exit(run_unit(texts))
    from riverrun.server.host.directories import is_base_of_unit
    from riverrun.server.main import run

    if is_base_of_unit(directory := texts.get("log.dirs", "")):
        fail(
            f"{directory} holds the directories of several nodes: add --processes N, or name the "
            "directory of one node with --data",
            USAGE,
        )
    raise typer.Exit(run(texts))


def reached_at(address: str, texts: dict[str, str]) -> dict[str, str]:
    """Settings with the listeners that follow from the advertised address.

    A node with a host name listens on all interfaces, because the name may belong to a proxy or a
    pod. A node on the loopback address listens only there.
    """
    from riverrun.cli.support.options import USAGE, fail
    from riverrun.client.pool import parse_bootstrap

    try:
        [(host, port)] = parse_bootstrap(address)
    except ValueError:
        fail(f"--advertised-addr {address}: expected one address, for example node1:9092", USAGE)
    roles = texts.get("process.roles", "broker,controller")
    written = f"[{host}]" if ":" in host else host
    here = written if host.startswith(LOOPBACK) else "0.0.0.0"
    listeners = []
    if "broker" in roles:
        listeners.append(f"PLAINTEXT://{here}:{port}")
    # A pure controller has no clients: the given address is its controller listener.
    controller_port = port + CONTROLLER_ABOVE if listeners else port
    if "controller" in roles:
        listeners.append(f"CONTROLLER://{here}:{controller_port}")
    advertised_listeners = listeners[:1] if "listeners" in texts else listeners
    advertised = [text.replace(f"{here}:", f"{written}:") for text in advertised_listeners]
    derived = {
        "listeners": ",".join(listeners),
        "http.listener": f"{here}:{port + HTTP_ABOVE}",
    }
    return derived | texts | {"advertised.listeners": ",".join(advertised)}
