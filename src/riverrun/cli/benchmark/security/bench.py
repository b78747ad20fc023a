"""The part ``security`` on one node: TLS, handshakes, authorization and quotas.

Each measurement needs servers with settings of its own, so it starts them. Rounds alternate between
the servers. How exactly quotas are kept does not depend on the speed, so it is measured once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.cli.benchmark.clusters import Nodes
from riverrun.cli.benchmark.load import Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row, progress
from riverrun.cli.benchmark.security import authorization, handshakes, tls_clusters, tls_load
from riverrun.cli.benchmark.security.quota_accuracy import QuotaTest, measure_quotas

SHAPES = (
    Shape(record_bytes=1000, batch_bytes=16_384, megabytes=100),
    Shape(record_bytes=1000, batch_bytes=65_536, megabytes=200),
    Shape(record_bytes=1000, batch_bytes=1_000_000, megabytes=300),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityBench:
    """How much is measured."""

    shapes: tuple[Shape, ...] = SHAPES
    warm_up: Shape = tls_load.WARM_UP
    handshake_seconds: float = handshakes.SECONDS
    acls: int = 10_000
    authorized: Shape = authorization.SHAPE
    quotas: QuotaTest = field(default_factory=QuotaTest)

    def run(self, table: RatioTable, names: Sequence[str], *, rounds: int) -> None:
        authorization.add_decision_rows(table, self.acls)
        for number in range(rounds):
            for name in names:
                progress(f"security, round {number + 1} of {rounds}: {name}")
                with tls_clusters.STARTERS[name](1) as nodes:
                    tls_load.measure_tls(name, nodes, table, self.shapes, self.warm_up)
                    self._connect(name, nodes, table)
                authorization.measure_authorizer(
                    name, table, count=self.acls, shape=self.authorized, warm_up=self.warm_up
                )
        for name in names:
            progress(f"security, quotas: {name}")
            measure_quotas(name, table, self.quotas)

    def _connect(self, name: str, nodes: Nodes, table: RatioTable) -> None:
        node = next(iter(nodes.members.values()))
        trusted = Path(nodes.properties["ssl.truststore.location"])
        handshakes.count_handshakes(node, trusted, self.handshake_seconds / 2)
        found = handshakes.count_handshakes(node, trusted, self.handshake_seconds)
        words = f"handshake and ApiVersions, {found.cipher}"
        table.add(name, Row("new connections", words, "connections/s"), found.per_second)
        table.add(name, Row("new connections", words, "CPU ms each"), found.cpu_ms_each)
        progress(f"  {name}: {found.per_second:.0f} connections/s, {found.cpu_ms_each:.2f} CPU ms")


QUICK = SecurityBench(
    shapes=SHAPES[1:2], quotas=QuotaTest(megabytes_per_second=(10,), measured_seconds=11.0)
)
