"""The how-to guides of docs/security.md: their files and commands protect real nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.pages import DOCS
from tests.processes import free_ports, until
from tests.secure_node import SecureNode

PAGE = (DOCS / "security.md").read_text()
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
NODES = 4
PORTS_PER_NODE = 10
SECONDS_MAX = 90
PASSWORD = "s3cret"

pytestmark = pytest.mark.slow


def blocks(heading: str) -> list[str]:
    """The blocks of code of a section, without indentation."""
    level = heading.partition(" ")[0]
    section = PAGE.partition(f"\n{heading}\n")[2]
    section = re.split(rf"^#{{2,{len(level)}}} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return [
        re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        for found in FENCE.finditer(section)
    ]


class Site:
    """The machines of the page: each one is a range of ports here, and all share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first_port = free_ports(NODES * PORTS_PER_NODE)

    def here(self, text: str, node: int = 1) -> str:
        """A text of the page for a node, with the addresses and files of this machine."""
        text = text.replace("0.0.0.0:", f"node{node}.example.com:")
        text = re.sub(r"node(\d)\.example\.com:(\d+)", self._address, text)
        text = re.sub(r"node\d\.example\.com", "127.0.0.1", text)
        return text.replace("/etc/riverrun/", f"{self.folder}/")

    def _address(self, found: re.Match[str]) -> str:
        node, port = int(found[1]), int(found[2])
        return f"127.0.0.1:{self.first_port + PORTS_PER_NODE * (node - 1) + port - 9092}"

    def shell(self, script: str, **variables: str) -> str:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", self.here(script)],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **variables,
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    @contextlib.contextmanager
    def started(self, node: int, settings: str) -> Iterator[None]:
        """A node with a file of settings, until the end of the test."""
        path = self.folder / f"node-{node}.toml"
        path.write_text(settings)
        with (
            (self.folder / f"node-{node}.log").open("w") as log,
            subprocess.Popen(
                [sys.executable, "-m", "riverrun", "start", "--config", str(path)],
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(SECONDS_MAX)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))


def settings_of(site: Site, node: int, page: str, names: list[int]) -> str:
    """The file of a node: the block of the page, and what the page of operations adds."""
    others = [one for one in range(1, NODES) if one != node]
    text = page.replace("node1.example.com", f"node{node}.example.com")
    text = text.replace("node-1.pem", f"node-{node}.pem")
    text = re.sub(r"(?m)^super\.users = .*$", f'super.users = "{_users(names)}"', text)
    seeds = ",".join(f"node{one}.example.com:9093" for one in others)
    text = re.sub(r"(?m)^seed\.nodes = .*$", f'seed.nodes = "{seeds}"', text)
    more = f"""node.id = {node}
log.dirs = "{site.folder}/data-{node}"
http.listener = "0.0.0.0:9094"
default.replication.factor = 3
min.insync.replicas = 2
"""
    return site.here(more + text, node)


def _users(names: list[int]) -> str:
    return ";".join(["User:admin", *(f"User:node-{one}" for one in names)])


def test_a_cluster_on_several_machines_is_secured_and_grows(tmp_path: Path) -> None:
    site = Site(tmp_path)
    certificates, file, properties, rights = blocks("## Secure a cluster on several machines")[:4]
    site.shell(certificates)
    for path in (tmp_path / "certs").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "admin.password").write_text(PASSWORD)
    (tmp_path / "client.properties").write_text(properties.replace("PASSWORD", PASSWORD))
    exports = rights.splitlines()[0]

    def count_up() -> int:
        shown = site.shell(f"{exports}\nriverrun cluster status --json || true")
        brokers = json.loads(shown)["brokers"] if shown else []
        return sum(1 for broker in brokers if broker["state"] == "up")

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: print(site.logs()))
        for node in (1, 2, 3):
            stack.enter_context(site.started(node, settings_of(site, node, file, [1, 2, 3])))
        until(lambda: count_up() == 3, seconds=SECONDS_MAX, what="three nodes are up")
        said = site.shell(rights, RIVERRUN_NEW_PASSWORD=PASSWORD)
        assert "allowed: ALLOW User:alice from * WRITE on TOPIC orders" in said
        (growth,) = blocks("### Add a node to a secure cluster")
        site.shell(f"{exports}\n{growth}")
        (tmp_path / "node-4.pem").write_bytes((tmp_path / "certs" / "node-4.pem").read_bytes())
        stack.enter_context(site.started(4, settings_of(site, 4, file, [1, 2, 3, 4])))
        until(lambda: count_up() == 4, seconds=SECONDS_MAX, what="the fourth node is up")


def test_a_listener_of_its_own_ends_a_lock_out(tmp_path: Path) -> None:
    """A single node, whose own name is not a super user."""
    site = Site(tmp_path)
    rescue_address = f"127.0.0.1:{site.first_port + 4}"
    certificates, file, client = blocks("## Secure a cluster on several machines")[:3]
    site.shell(certificates)
    for path in (tmp_path / "certs").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "admin.password").write_text("forgotten")
    before = settings_of(site, 1, file, [])
    before = re.sub(r"(?m)^(seed\.nodes|default\.rep|min\.in).*\n", "", before)
    *_, added, rescue, command = blocks("## Locked out")
    extended = before
    for line in added.splitlines():
        name, _, value = line.partition("  #")[0].strip().partition(" = ")
        value = value.replace("127.0.0.1:9096", rescue_address)
        if value.startswith('"...'):
            longer = value.removeprefix('"...').removesuffix('"')
            names = rf"(?:advertised\.)?{re.escape(name)}"
            extended = re.sub(rf'(?m)^({names} = ".*)"$', rf'\1{longer}"', extended)
        else:
            extended += f"{name} = {value}\n"
    (tmp_path / "rescue.properties").write_text(rescue)
    (tmp_path / "client.properties").write_text(client.replace("PASSWORD", PASSWORD))
    variables = {
        "RIVERRUN_BOOTSTRAP": f"127.0.0.1:{site.first_port}",
        "RIVERRUN_COMMAND_CONFIG": "client.properties",
        "RIVERRUN_NEW_PASSWORD": PASSWORD,
    }

    def is_ready() -> bool:
        return "node is up" in (tmp_path / "node-1.log").read_text()

    with site.started(1, before):
        until(is_ready, seconds=SECONDS_MAX, what="the node is up")
        refused = site.shell("riverrun users list 2>&1 || true", **variables)
        assert "the login failed" in refused
    with site.started(1, extended):
        until(is_ready, seconds=SECONDS_MAX, what="the node is up with the rescue listener")
        site.shell(command.replace("127.0.0.1:9096", rescue_address), **variables)
    with site.started(1, before):
        until(is_ready, seconds=SECONDS_MAX, what="the node is up again")
        assert "admin" in site.shell("riverrun users list", **variables)


def test_tokens_of_an_identity_provider_log_users_in(tmp_path: Path) -> None:
    settings, rights, _client = blocks("### OAuth with an identity provider")
    url = re.search(r'jwks\.endpoint\.url = "(.*)"', settings)
    issuer = re.search(r'expected\.issuer = "(.*)"', settings)
    assert url is not None and issuer is not None
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [{**public, "kid": "k1", "alg": "RS256"}]}))
    given = tomllib.loads(settings.replace(url[1], f"file://{keys}"))
    node = SecureNode(tmp_path / "data", *(f"{name}={text}" for name, text in _flat(given)))
    try:
        assert node.run("topics", "create", "orders").returncode == 0
        assert node.run(*rights.split()[1:]).returncode == 0
        now = int(time.time())
        claims = {"iss": issuer[1], "aud": "riverrun", "sub": "billing-service"}
        token = jwt.encode(
            {**claims, "iat": now, "exp": now + 900}, key, "RS256", headers={"kid": "k1"}
        )
        program = tmp_path / "program.properties"
        program.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            f"sasl.oauthbearer.token={token}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={node.security['ca']}\n"
        )
        listed = node.run("topics", "list", environment={"RIVERRUN_COMMAND_CONFIG": str(program)})
        assert "orders" in listed.stdout, listed.stderr
    finally:
        node.stop()


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The settings of a file by their whole names."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
