"""Certificates are replaced while clients write, and no client sees an error."""

from __future__ import annotations

import os
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from riverrun.cli.certs.authority import Authority
from tests.processes import until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

NODES = 3
SECONDS_MAX = 30
HOSTS = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    nodes = SecureNode(tmp_path_factory.mktemp("rotation") / "data", nodes=NODES)
    assert nodes.run("topics", "create", "load", "--partitions", "3").returncode == 0
    yield nodes
    assert nodes.stop() == 0


class Load:
    """A producer with acks=all that writes until it is stopped."""

    def __init__(self, secure: SecureNode) -> None:
        self.errors: list[KafkaError] = []
        self.delivered = 0
        self.sent = 0
        settings = {"acks": "all", "error_cb": self.errors.append, "linger.ms": 1}
        self._producer = Producer({**secure.admin, **settings})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(SECONDS_MAX) == 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.produce("load", b"x" * 100, on_delivery=self._done)
            self.sent += 1
            self._producer.poll(0.001)

    def _done(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.errors.append(error)

    def progress(self) -> None:
        """Wait for further acknowledged records."""
        before = self.delivered
        until(lambda: self.delivered > before + 50, seconds=SECONDS_MAX, what="progress")


def certificate(address: str) -> bytes:
    """The certificate that a node presents to a new connection."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port))).encode()


def until_replaced(address: str, old: bytes) -> None:
    until(lambda: certificate(address) != old, seconds=SECONDS_MAX, what="a new certificate")


def write_unnoticed(path: Path, authority: Authority, name: str) -> None:
    """Replace a certificate so that no look at the file shows it: only SIGHUP helps."""
    state, old = path.stat(), path.read_bytes()
    new = path.with_suffix(".new")

    def is_short() -> bool:
        authority.issue(new, name=name, hosts=HOSTS)
        return new.stat().st_size <= state.st_size

    until(is_short, seconds=SECONDS_MAX, what="a certificate that is not longer")
    path.write_bytes(new.read_bytes().ljust(len(old), b"\n"))
    new.unlink()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_certificates_are_rotated_under_load_without_an_error(secure: SecureNode) -> None:
    folder = Path(secure.security["ca"]).parent
    authority = Authority(folder)
    with Load(secure) as load:
        load.progress()
        for node in secure.told["nodes"]:
            old = certificate(node["client"])
            authority.issue(
                folder / f"node-{node['id']}.pem", name=f"node-{node['id']}", hosts=HOSTS
            )
            until_replaced(node["client"], old)
            load.progress()
        for node in secure.told["nodes"]:
            old = certificate(node["client"])
            write_unnoticed(folder / f"node-{node['id']}.pem", authority, f"node-{node['id']}")
            assert certificate(node["client"]) == old, "the file looks unchanged"
            os.kill(node["pid"], signal.SIGHUP)
            until_replaced(node["client"], old)
            load.progress()
        user, password = secure.security["user"], secure.security["password"]
        assert secure.produce(user, password, "load") == "", "new clients trust the certificates"
    assert load.errors == []
    assert load.delivered == load.sent


def test_an_invalid_certificate_changes_nothing(secure: SecureNode) -> None:
    node = secure.told["nodes"][0]
    path = Path(secure.security["ca"]).parent / f"node-{node['id']}.pem"
    good, old = path.read_bytes(), certificate(node["client"])
    with Load(secure) as load:
        path.write_text("no certificate")
        os.kill(node["pid"], signal.SIGHUP)
        until(
            lambda: "new certificate refused" in secure.logged,
            seconds=SECONDS_MAX,
            what="a line in the log",
        )
        assert certificate(node["client"]) == old
        load.progress()
        path.write_bytes(good)
    assert load.errors == []


def test_an_administrator_changes_the_certificate_of_a_listener(secure: SecureNode) -> None:
    node = secure.told["nodes"][0]
    folder = Path(secure.security["ca"]).parent
    other = folder / "other.pem"
    Authority(folder).issue(other, name=f"node-{node['id']}", hosts=HOSTS)
    renamed = folder / "renamed.pem"
    Authority(folder).issue(renamed, name="other", hosts=HOSTS)
    old = certificate(node["client"])
    setting = "listener.name.sasl_ssl.ssl.keystore.location"

    def configure(path: Path) -> str:
        """The error, if the node refuses the file."""
        words = ("--node", str(node["id"]), f"{setting}={path}")
        done = secure.run("cluster", "config", "set", *words)
        assert (done.returncode == 0) == (not done.stderr), done.stderr
        return str(done.stderr)

    with Load(secure) as load:
        load.progress()
        assert configure(other) == ""
        until_replaced(node["client"], old)
        load.progress()
        new = certificate(node["client"])
        assert "cannot read it" in configure(folder / "missing.pem")
        assert "ssl.allow.dn.changes" in configure(renamed)
        assert certificate(node["client"]) == new
        load.progress()
    assert load.errors == []
