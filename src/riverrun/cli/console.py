"""``riverrun console``: the web console for any Kafka cluster, or several."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, FAILED, USAGE, Bootstrap, fail

if TYPE_CHECKING:
    from riverrun.console.clusters import ClusterSettings

PORT = 9095
NAME = "main"


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    clusters: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="NAME[=HOST:PORT]",
            help="A cluster with a name; without an address, the context of that name. May be "
            "repeated. Default: the cluster of --bootstrap, as main.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port; 0: a free one.")
    ] = PORT,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="A further host name by which browsers may reach the console; .example.com stands "
            "for all names below it, and * for every name. May be repeated. Addresses, localhost, "
            "the machine's name and the name in --host are always allowed.",
        ),
    ] = None,
    is_read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse everything that changes a cluster.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Serve the web console and the REST API, for any Kafka cluster.

    Nodes of riverrun serve it themselves, at their HTTP port. Use this command for other clusters,
    for several clusters at once, or on another machine. It runs until Ctrl-C.

    With a SASL listener, users log in, to each cluster by itself. If --command-config has a user
    and a password, all use the console as that user, without a login.

    \b
    riverrun console --bootstrap kafka1:9092
    riverrun console --cluster staging --cluster production=10.0.0.1:9092 --read-only
    """
    from riverrun.console.app import ConsoleSettings
    from riverrun.console.host_names import ALL, is_loopback
    from riverrun.console.server import run_on_port
    from riverrun.model.settings import SettingError

    settings = ConsoleSettings(
        clusters=tuple(_clusters(bootstrap, clusters or [])),
        is_read_only=is_read_only,
        is_local=is_loopback(host),
        # --host * listens on all addresses, and does not allow all names.
        hosts=(*(name for name in (host, socket.gethostname()) if name != ALL), *(hosts or [])),
    )

    def started(used: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"Console: http://{shown}:{used}/", flush=True)

    try:
        run_on_port(settings, host, port, started)
    except SettingError as error:
        fail(f"--command-config: {error}", USAGE)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        fail(f"cannot listen on {host}:{port}: {reason}; choose another --port", FAILED)


def _clusters(bootstrap: str, texts: list[str]) -> list[ClusterSettings]:
    from riverrun.cli.support.client_config import command_properties, login_of
    from riverrun.cli.support.contexts import choose
    from riverrun.client.pool import parse_bootstrap
    from riverrun.console.clusters import ClusterSettings

    if not texts:
        texts = [f"{NAME}={bootstrap}"]
    made: dict[str, ClusterSettings] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        properties = dict(login_of(bootstrap))
        if not equals:
            chosen = choose(os.environ, name)
            address = chosen.address
            properties = command_properties(os.environ, None, chosen.entries)
        if not name or name in made:
            fail(f"--cluster {text}: expected a different name for each cluster", USAGE)
        try:
            parse_bootstrap(address)
        except ValueError as error:
            fail(f"--cluster {text}: {error}", USAGE)
        made[name] = ClusterSettings(name=name, bootstrap=address, properties=properties)
    return list(made.values())
