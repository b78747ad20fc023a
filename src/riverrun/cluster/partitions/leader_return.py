"""The pace at which leadership returns to the preferred replicas of a broker.

A broker that was restarted could get ten thousand leaderships in one second. Each of them moves the
clients of a partition, and the broker may still be busy with its other replicas. So leaderships
return in steps. A step of a broker is

    nothing      while it has not read the metadata of its previous step,
    a quarter    while some of its replicas are out of sync: it is still catching up,
    a quarter    while its heartbeats are late,
    the maximum  otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions.elect_leaders import balance
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import Image
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.model.ids import NodeId
from riverrun.model.settings import SECOND_MS

STEP_SECONDS: Final = 1.0
SLOW_DIVISOR: Final = 4
LATE_HEARTBEATS: Final = 2
"""A heartbeat that is overdue by this many intervals shows that the broker is busy."""


class LeaderReturn:
    """Call ``step`` once a second while leaderships remain to be returned."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._partitions_max = settings.leaders_returned_max
        self._late_seconds = LATE_HEARTBEATS * settings.heartbeat_interval_ms / SECOND_MS
        self._last: dict[NodeId, int] = {}
        """The metadata offset of each broker's last step."""

    def step(
        self, configs: Configs, image: Image, sessions: Sessions, now: float
    ) -> Decision[bool]:
        """Elect preferred leaders; True if more remain."""
        decision = balance(configs, image, limits=self._limits(image, sessions, now))
        for record in decision.records:
            assert isinstance(record, PartitionChangeRecord), f"{record} elects no leader"
            self._last[NodeId(record.leader)] = image.offset + len(decision.records)
        return decision

    def _limits(self, image: Image, sessions: Sessions, now: float) -> Mapping[NodeId, int]:
        limits: dict[NodeId, int] = {}
        lagging = _lagging(image)
        for node in image.brokers:
            session = sessions.get(node)
            if session is None or session.offset < self._last.get(node, -1):
                limits[node] = 0
            elif node in lagging or now - session.contact > self._late_seconds:
                limits[node] = max(self._partitions_max // SLOW_DIVISOR, 1)
            else:
                limits[node] = self._partitions_max
        return limits


def _lagging(image: Image) -> dict[NodeId, None]:
    """The brokers with replicas that are not in sync."""
    found: dict[NodeId, None] = {}
    for topic in image.topics_by_id.values():
        for partition in topic.partitions:
            if len(partition.isr) < len(partition.replicas):
                for node in partition.replicas:
                    if node not in partition.isr:
                        found[node] = None
    return found
