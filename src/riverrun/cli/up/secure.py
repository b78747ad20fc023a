"""``riverrun up --secure``: certificates, the first user, and the settings that protect a cluster.

Everything is in the folder ``security`` of the data directory and is kept for later runs:

    ca.pem, ca.key        the authority; clients need ca.pem
    node-N.pem            key and certificate of each node
    admin.password        the password of the user admin, created with the cluster
    client.properties     settings for clients and tools, by Kafka's names
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverrun.cli.support.options import USAGE, fail
from riverrun.cli.support.private_files import write_private

if TYPE_CHECKING:
    from riverrun.cli.up.files import NodeFiles

FOLDER: Final = "security"
LISTENER: Final = "SASL_SSL"
INTERNAL: Final = "INTERNAL"
INTERNAL_PORT: Final = 3
"""The port for other brokers, above the client port."""
USER: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
RENEW_DAYS: Final = 30
"""Certificates that expire within this time are renewed at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecurity:
    """How clients connect; printed by ``up``."""

    protocol: str
    mechanism: str
    user: str
    password: str
    ca: str
    properties: str

    def as_row(self) -> dict[str, str]:
        return asdict(self)


def is_secure(data: Path) -> bool:
    """Whether an earlier run with this directory was secure."""
    return (data / FOLDER / "client.properties").exists()


def prepare(data: Path, names: Sequence[str], host: str) -> ClusterSecurity:
    """Create what is missing for nodes with these names. Exits if it cannot."""
    from riverrun.cli.certs.authority import Authority, CertificateError, describe

    folder = data / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (folder / "ca.key").exists():
            authority = Authority(folder)
        else:
            authority = Authority.create(folder, name="riverrun")
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=RENEW_DAYS)
        for name in names:
            path = folder / f"{name}.pem"
            if not path.exists() or describe(path)[0].not_after < soon:
                authority.issue(path, name=name, hosts=(host, "localhost"))
        password = _password(folder / "admin.password")
        properties = folder / "client.properties"
        write_private(properties, _client_properties(folder / "ca.pem", password))
    except OSError as error:
        fail(f"cannot write {folder}: {error.strerror}", USAGE)
    except CertificateError as error:
        fail(str(error), USAGE)
    return ClusterSecurity(
        protocol=LISTENER,
        mechanism=MECHANISM,
        user=USER,
        password=password,
        ca=str(folder / "ca.pem"),
        properties=str(properties),
    )


def settings_of(
    node: NodeFiles, cluster: Sequence[NodeFiles], data: Path, host: str
) -> dict[str, object]:
    """The settings of one node, besides those of a plain cluster."""
    addresses = (
        f"{LISTENER}://{node.client}",
        f"CONTROLLER://{host}:{node.port + 1}",
        f"{INTERNAL}://{host}:{node.port + INTERNAL_PORT}",
    )
    chosen: dict[str, object] = {
        "listeners": ",".join(addresses),
        **protection(node.name, [one.name for one in cluster], data),
    }
    others = [f"{host}:{other.port + 1}" for other in cluster if other is not node]
    if others:
        chosen["seed.nodes"] = ",".join(others)  # the listeners that need no user
    return chosen


def protection(name: str, names: Sequence[str], data: Path) -> dict[str, str]:
    """The settings that protect one of these nodes. Its listeners are ``LISTENER``, CONTROLLER
    and ``INTERNAL``.
    """
    folder = data / FOLDER
    return {
        "listener.security.protocol.map": f"CONTROLLER:SSL,{INTERNAL}:SSL",
        "inter.broker.listener.name": INTERNAL,
        "ssl.keystore.location": str(folder / f"{name}.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.principal.mapping.rules": "RULE:^CN=(node-[0-9]+)$/$1/,DEFAULT",
        "listener.name.controller.ssl.client.auth": "required",
        f"listener.name.{INTERNAL.lower()}.ssl.client.auth": "required",
        "authorizer.class.name": "riverrun",
        "super.users": ";".join(f"User:{one}" for one in (USER, *names)),
        "bootstrap.admin.user": USER,
        "bootstrap.admin.password.file": str(folder / "admin.password"),
    }


def _client_properties(ca: Path, password: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return (
        "# Settings for clients and tools of this cluster\n"
        f"security.protocol={LISTENER}\n"
        f"sasl.mechanism={MECHANISM}\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={ca}\n"
        f'sasl.jaas.config={module} required username="{USER}" password="{password}";\n'
    )


def _password(path: Path) -> str:
    """The password of an earlier run, or a new one."""
    if path.exists():
        return path.read_text().strip()
    password = secrets.token_urlsafe(24)
    write_private(path, password + "\n")
    return password
