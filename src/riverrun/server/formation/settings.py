"""Settings of a node's first start: its roles and its seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import SECOND_MS, SettingError, Settings, setting

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormationSettings(Settings):
    """The node's roles, and how it joins or forms its cluster."""

    roles: tuple[str, ...] = setting(
        (BROKER, CONTROLLER),
        name="process.roles",
        choices=(BROKER, CONTROLLER),
        doc="Roles of the node. A broker holds partitions, a controller can vote on metadata.",
    )
    seed_nodes: tuple[str, ...] = setting(
        (),
        name="seed.nodes",
        doc="HOST:PORT of other nodes: their client or controller listeners, or a DNS name that "
        "resolves to all nodes, together with bootstrap.expect. Empty for a cluster of one node.",
    )
    expect: int = setting(
        0,
        name="bootstrap.expect",
        at_least=0,
        at_most=1000,
        doc="Number of controllers that form the cluster. Required if seed.nodes is a DNS name of "
        "several nodes. 0: as many as seed.nodes names.",
    )
    cluster_id: str = setting(
        "",
        name="cluster.id",
        doc="Id of the cluster that this node joins or forms. Empty: the cluster of the seeds, or "
        "a new one.",
    )
    auto_join: bool = setting(
        False,
        name="controller.quorum.auto.join.enable",
        doc="Whether a controller that joins a cluster becomes a voter automatically. A voter that "
        "lost its data always does.",
    )
    response_ms_max: int = setting(
        SECOND_MS,
        name="seed.timeout.ms",
        at_least=10,
        doc="Request timeout for a seed; the request is then retried.",
    )
    retry_ms: int = setting(
        100,
        name="seed.retry.ms",
        at_least=1,
        doc="Pause between two rounds of requests to all seeds, until the node has a cluster.",
    )

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    def seeds(self) -> list[tuple[str, int]]:
        """The addresses in ``seed.nodes``; raises ``SettingError``."""
        return list(dict.fromkeys(map(parse_seed, self.seed_nodes)))


def parse_seed(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError("seed.nodes", text, "a seed looks like node1:9092")
    return host.strip("[]"), int(port)
