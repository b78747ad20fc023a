"""Clusters whose listeners all have TLS, for clients and between nodes.

Both servers read the same PEM files: an ECDSA key on P-256. They use TLSv1.3 alone, and no SASL, so
that the encryption is the only difference from the other clusters.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from riverrun.cli.benchmark import clusters
from riverrun.cli.benchmark.clusters import HOST, PORTS_PER_NODE, BenchmarkNode, Nodes, TlsFiles
from riverrun.cli.certs.authority import CA_CERTIFICATE, Authority
from riverrun.cli.support.free_ports import find_free_ports


def create_files(folder: Path) -> TlsFiles:
    """A new authority, and a certificate for this machine."""
    keystore = folder / "node.pem"
    Authority.create(folder, name="bench").issue(keystore, name="node", hosts=(HOST, "localhost"))
    return TlsFiles(keystore, folder / CA_CERTIFICATE)


@contextlib.contextmanager
def riverrun(count: int = 3) -> Iterator[Nodes]:
    """Nodes started by ``riverrun start``: ``riverrun up`` has no listener with TLS alone."""
    with tempfile.TemporaryDirectory(prefix="bench-riverrun-tls-") as folder:
        work = Path(folder)
        tls = create_files(work / "certificates")
        first = find_free_ports(PORTS_PER_NODE * count)
        ports = {number: first + PORTS_PER_NODE * (number - 1) for number in range(1, count + 1)}
        nodes = Nodes(work, properties=tls.client_properties())
        for number, port in ports.items():
            config = work / f"node-{number}.toml"
            seeds = [f"{HOST}:{other + 1}" for other in ports.values() if other != port]
            config.write_text(_config(work, number, port, seeds, tls))
            nodes.members[number] = BenchmarkNode(
                id=number, pid=0, address=f"{HOST}:{port}",
                command=[sys.executable, "-m", "riverrun.cli", "start", "--config", str(config)],
                http=f"{HOST}:{port + 2}", controller=f"{HOST}:{port + 1}",
                data=work / f"data-{number}",
            )  # fmt: skip
        try:
            began = time.monotonic()
            for number in ports:
                nodes.start(number)
            nodes.wait()
            nodes.ready_seconds = time.monotonic() - began
            yield nodes
        finally:
            nodes.close()


@contextlib.contextmanager
def kafka(count: int = 3) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-certificates-"))
        yield stack.enter_context(clusters.kafka(count, tls=create_files(Path(folder))))


STARTERS: Final[Mapping[str, Callable[[int], contextlib.AbstractContextManager[Nodes]]]] = {
    "riverrun": riverrun,
    "kafka": kafka,
}


def _config(work: Path, number: int, port: int, seeds: list[str], tls: TlsFiles) -> str:
    given = {
        "node.id": str(number),
        "log.dirs": str(work / f"data-{number}"),
        "http.listener": f"{HOST}:{port + 2}",
        "seed.nodes": ",".join(seeds),
        **clusters.common(len(seeds) + 1),
        **clusters.listeners(port, tls),
    }
    return "".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in given.items())
