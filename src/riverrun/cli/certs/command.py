"""``riverrun certs``: create and show certificates for clusters with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import AsJson

if TYPE_CHECKING:
    from riverrun.cli.certs.authority import CertificateInfo

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The directory of the authority.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The file to write.  [DIR/NAME.pem]")
]
DIRECTORY = Path("certs")


def register(app: typer.Typer) -> None:
    certs = CommandApp(
        help="Certificates for TLS: an authority, nodes and clients. They work with "
        "Apache Kafka and its clients too."
    )
    certs.command("create-ca")(create_ca)
    certs.command("create-node")(create_node)
    certs.command("create-client")(create_client)
    certs.command("show")(show)
    app.add_typer(certs, name="certs")


def create_ca(
    directory: Directory = DIRECTORY,
    name: Annotated[str, typer.Option("--name", help="The name of the authority.")] = "riverrun",
    days: Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")] = 3650,
) -> None:
    """Create a certificate authority: ca.pem for everybody, and ca.key, which signs certificates.

    Keep ca.key off the nodes: it can make certificates that all nodes accept.
    """
    with _explained():
        from riverrun.cli.certs.authority import Authority

        Authority.create(directory, name=name, days=days)
    print(f"{directory / 'ca.pem'} and {directory / 'ca.key'} written")


def create_node(
    name: Annotated[str, typer.Argument(help="The name of the node, which becomes its user.")],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="NAME|IP", help="A host name or address of the node; repeat it."
        ),
    ],
    directory: Directory = DIRECTORY,
    out: Out = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")] = 365,
) -> None:
    """Create the key and certificate of a node, for ssl.keystore.location.

    Run it again to renew the certificate. A running node uses the new file within some seconds.

    \b
    riverrun certs create-node node-1 --host node1.example.com --host 10.0.0.1
    """
    _issue(directory, name, out, hosts, days)


def create_client(
    name: Annotated[str, typer.Argument(help="The name of the client, which becomes its user.")],
    directory: Directory = DIRECTORY,
    out: Out = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")] = 365,
) -> None:
    """Create the key and certificate of a client, for listeners that require one."""
    _issue(directory, name, out, [], days)


def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="PEM files.")],
    as_json: AsJson = False,
) -> None:
    """Show the certificates in PEM files: names, hosts, and when they expire."""
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import print_json, print_tables

    with _explained():
        from riverrun.cli.certs.authority import describe

        found = [info for path in files for info in describe(path)]
    if as_json:
        print_json([_as_row(info) for info in found])
        return
    table = Table(columns=["FILE", "SUBJECT", "ISSUER", "HOSTS", "EXPIRES", "DAYS LEFT"])
    for info in found:
        table.rows.append(
            [
                info.path,
                info.subject,
                info.issuer,
                ", ".join(info.hosts) or "-",
                info.not_after.date().isoformat(),
                _days_left(info),
            ]
        )
    print_tables([table])


def _as_row(info: CertificateInfo) -> dict[str, object]:
    return {
        "file": info.path,
        "subject": info.subject,
        "issuer": info.issuer,
        "hosts": info.hosts,
        "authority": info.is_authority,
        "serial": info.serial,
        "not_before": info.not_before.isoformat(),
        "not_after": info.not_after.isoformat(),
        "days_left": _days_left(info),
    }


def _days_left(info: CertificateInfo) -> int:
    import datetime

    return (info.not_after - datetime.datetime.now(datetime.UTC)).days


def _issue(directory: Path, name: str, out: Path | None, hosts: list[str], days: int) -> None:
    path = out or directory / f"{name}.pem"
    with _explained():
        from riverrun.cli.certs.authority import Authority

        Authority(directory).issue(path, name=name, hosts=hosts, days=days)
    print(f"{path} written")


class _explained:
    """Turns errors into a message and an exit code."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        from riverrun.cli.support.options import USAGE, fail

        if isinstance(error, OSError):
            fail(f"cannot write {error.filename}: {error.strerror}", USAGE)
        if error is not None and type(error).__name__ == "CertificateError":
            fail(str(error), USAGE)
