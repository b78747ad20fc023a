"""The pace at which leadership returns to the preferred replicas of a broker.

A broker that was restarted could get ten thousand leaderships in one second. Each of them moves the
clients of a partition, and the broker may still be busy with its other replicas. So leaderships
return in steps. A step of a broker is

    nothing      while it has not read the metadata of its previous step,
    nothing      while it may be dead, was not heard yet, or leaves its in-sync sets,
    a quarter    while some of its replicas are out of sync: it is still catching up,
    a quarter    while its heartbeats are late,
    the maximum  otherwise.

The steps of a broker that was away begin when all its replicas are in sync again: until then the
others carry its load, and the next one that fails takes more partitions with it. A broker that
fails again and again moves the clients of its partitions each time. So with each return within
``REPEATED_SECONDS`` it waits twice as long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions.elect_leaders import balance
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import BrokerImage, Image, TopicImage
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.model.ids import NodeId, TopicId
from riverrun.model.settings import SECOND_MS

STEP_SECONDS: Final = 1.0
SLOW_DIVISOR: Final = 4
LATE_HEARTBEATS: Final = 2
"""A heartbeat that is overdue by this many intervals shows that the broker is busy."""
LOOK_SECONDS: Final = 0.25
"""How often the controller looks at the replicas of a broker that has returned."""
REPEATED_SECONDS: Final = 600.0
REPEATED_WAIT_SECONDS: Final = 1.0
REPEATED_WAIT_SECONDS_MAX: Final = 300.0
RETURNS_KEPT: Final = 10
"""More returns than this wait for the maximum anyway."""


class BrokerReturns:
    """Which brokers have returned, and from when on leaderships may return to them.

    Soft state of the active controller. A new controller takes all brokers for returned ones.
    """

    def __init__(self) -> None:
        self._seen: Mapping[NodeId, BrokerImage] = {}
        self.times: dict[NodeId, list[float]] = {}
        """When brokers returned within the last ``REPEATED_SECONDS``."""
        self._waiting: dict[NodeId, float] = {}
        """Brokers whose leaderships have not returned, and the earliest time for that."""
        self._lagging = LaggingBrokers()
        self._look_at = 0.0

    def reset(self) -> None:
        """Another controller has been active."""
        self._seen = {}
        self._waiting.clear()
        self._look_at = 0.0

    def is_due(self, image: Image, sessions: Sessions, now: float) -> bool:
        """Whether leaderships may return to a broker now, because its replicas are in sync.

        A new controller does not know yet which brokers live, so a heartbeat must have come since.
        """
        self._note(image.brokers, now)
        if not self._waiting or now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        heard = [
            node
            for node, since in self._waiting.items()
            if now >= since
            and (session := sessions.get(node)) is not None
            and session.contact > since
        ]
        if not heard:
            return False
        lagging = self._lagging.of(image)
        due = [node for node in heard if node not in lagging]
        for node in due:
            del self._waiting[node]
        return bool(due)

    def must_wait(self, node: NodeId, now: float) -> bool:
        """Whether a broker fails so often that it must do without leaderships."""
        return self._waiting.get(node, now) > now

    def _note(self, brokers: Mapping[NodeId, BrokerImage], now: float) -> None:
        if brokers is self._seen:
            return
        before, self._seen = self._seen, brokers
        self.times = {
            node: times for node, times in self.times.items() if now - times[-1] < REPEATED_SECONDS
        }
        for node in [node for node in self._waiting if node not in brokers]:
            del self._waiting[node]
        for node, broker in brokers.items():
            last = before.get(node)
            if broker.is_fenced:
                self._waiting.pop(node, None)
            elif last is None and not before:
                self._waiting[node] = now
            elif last is None or last.is_fenced or last.epoch != broker.epoch:
                self._waiting[node] = now + self._returned(node, now)

    def _returned(self, node: NodeId, now: float) -> float:
        """Seconds to wait after this return."""
        recent = [one for one in self.times.get(node, ()) if now - one < REPEATED_SECONDS]
        self.times[node] = [*recent, now][-RETURNS_KEPT:]
        if not recent:
            return 0.0
        wait = REPEATED_WAIT_SECONDS * 2.0 ** (len(recent) - 1)
        return min(wait, REPEATED_WAIT_SECONDS_MAX)


class LeaderReturn:
    """Call ``step`` when it ``is_due``: after a return, in regular checks, and once a second while
    leaderships remain to be returned."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._is_enabled = settings.auto_rebalance
        self._check_seconds = settings.imbalance_check_s
        self._check_at = 0.0
        self._partitions_max = settings.leaders_returned_max
        self._late_seconds = LATE_HEARTBEATS * settings.heartbeat_interval_ms / SECOND_MS
        self._last: dict[NodeId, int] = {}
        """The metadata offset of each broker's last step."""
        self._lagging = LaggingBrokers()
        self.returns = BrokerReturns()

    def reset(self, now: float) -> None:
        """Another controller has been active."""
        self._check_at = now + self._check_seconds
        self.returns.reset()

    def is_due(self, image: Image, sessions: Sessions, now: float) -> bool:
        if not self._is_enabled:
            return False
        if not self.returns.is_due(image, sessions, now) and now < self._check_at:
            return False
        self._check_at = now + self._check_seconds
        return True

    def retry(self, now: float) -> None:
        """The last step could not be stored."""
        self._check_at = now + STEP_SECONDS

    def step(
        self,
        configs: Configs,
        image: Image,
        sessions: Sessions,
        now: float,
        *,
        departing: Collection[NodeId] = (),
    ) -> Decision[bool]:
        """Elect preferred leaders; True if more remain. ``departing`` brokers get none."""
        limits = self._limits(image, sessions, now, departing)
        decision = balance(configs, image, limits=limits)
        for record in decision.records:
            assert isinstance(record, PartitionChangeRecord), f"{record} elects no leader"
            self._last[NodeId(record.leader)] = image.offset + len(decision.records)
        if decision.response:
            self._check_at = now + STEP_SECONDS
        return decision

    def _limits(
        self, image: Image, sessions: Sessions, now: float, departing: Collection[NodeId]
    ) -> Mapping[NodeId, int]:
        """A broker that must wait has no limit: it is due again when its wait ends, so steps that
        would find nothing else are not needed."""
        limits: dict[NodeId, int] = {}
        lagging = self._lagging.of(image)
        for node in image.brokers:
            if self.returns.must_wait(node, now):
                continue
            session = sessions.get(node)
            is_alive = (
                session is not None
                and session.is_heard
                and not session.is_suspect
                and node not in departing
            )
            is_following = session is not None and session.offset >= self._last.get(node, -1)
            if session is None or not (is_alive and is_following):
                limits[node] = 0
            elif node in lagging or now - session.contact > self._late_seconds:
                limits[node] = max(self._partitions_max // SLOW_DIVISOR, 1)
            else:
                limits[node] = self._partitions_max
        return limits


class LaggingBrokers:
    """The brokers with replicas that are not in sync, except those that move to them.

    All partitions are visited, so the result is kept until a topic changes.
    """

    def __init__(self) -> None:
        self._topics: Mapping[TopicId, TopicImage] | None = None
        self._found: dict[NodeId, None] = {}

    def of(self, image: Image) -> Mapping[NodeId, None]:
        if image.topics_by_id is self._topics:
            return self._found
        self._topics, self._found = image.topics_by_id, {}
        for topic in image.topics_by_id.values():
            for partition in topic.partitions:
                if len(partition.isr) < len(partition.replicas):
                    for node in partition.replicas:
                        if node not in partition.isr and node not in partition.adding:
                            self._found[node] = None
        return self._found
