"""Settings of a node's first start: its roles, and whom it asks for a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import SECOND_MS, SettingError, Settings, setting

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormationSettings(Settings):
    """What a node is, and with whom it becomes a cluster."""

    roles: tuple[str, ...] = setting(
        (BROKER, CONTROLLER),
        name="process.roles",
        choices=(BROKER, CONTROLLER),
        doc="What the node does: broker holds partitions, controller may vote on the metadata.",
    )
    seed_nodes: tuple[str, ...] = setting(
        (),
        name="seed.nodes",
        doc="HOST:PORT of the other nodes, by their addresses for clients or for controllers; or a "
        "DNS name with the addresses of all nodes, together with bootstrap.expect. Empty for a "
        "cluster of one node.",
    )
    expect: int = setting(
        0,
        name="bootstrap.expect",
        at_least=0,
        at_most=1000,
        doc="How many nodes with the role controller found the cluster; needed when seed.nodes is "
        "a DNS name of several nodes. 0 for as many as seed.nodes names.",
    )
    cluster_id: str = setting(
        "",
        name="cluster.id",
        doc="The cluster that this node belongs to: it joins no other, and founds it by that id. "
        "Empty for the one that the seeds know, or a new one.",
    )
    auto_join: bool = setting(
        False,
        name="controller.quorum.auto.join.enable",
        doc="Whether a controller that joins a cluster becomes a voter by itself. One that was a "
        "voter and lost its data always does.",
    )
    answer_ms_max: int = setting(
        SECOND_MS,
        name="seed.timeout.ms",
        at_least=10,
        doc="How long a seed has to answer before it is asked again.",
    )
    retry_ms: int = setting(
        100,
        name="seed.retry.ms",
        at_least=1,
        doc="Pause between two rounds of questions to all seeds, before the node has a cluster.",
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
