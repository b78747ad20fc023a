"""Checks after each event-loop iteration that the metadata of all nodes is one history.

The invariants: an epoch has one leader. Epochs and published images never go back. Images at equal
offsets are equal. A leader has everything that was ever committed. Partition states change only in
allowed ways. A throttle belongs to a plan. A node that lost its disk starts again without a history
(``reset_node``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import NO_LEADER, Image, PartitionImage
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.simulation.checks.plan_checks import throttle_left_behind
from riverrun.simulation.checks.reassignments import ReassignmentHistory
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.loop import NodeLoop
from riverrun.simulation.world import World

PartitionChanged = Callable[[str, int, PartitionImage, PartitionImage], None]


@dataclass(slots=True)
class _Seen:
    """The last observed quorum state of one process."""

    find: Callable[[], MetadataLog | None]
    log: MetadataLog | None = None
    epoch: int = -1
    leader: int | None = None
    high_watermark: int = -1


class MetadataHistory:
    """``latest`` is the newest image that any node published, so all of it is committed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.latest = Image()
        self.leaders: dict[int, int] = {}
        self.elections = 0
        self.images = 0
        self.compare_every = 1
        """Compare images only at multiples of this offset; large clusters publish many."""
        self._images: dict[int, tuple[str, Image]] = {}
        self._processes: dict[NodeLoop, _Seen] = {}
        self._epochs: dict[str, int] = {}
        self.has_plans_only = False
        """Whether all throttles are set by plans."""
        self.reassignments = ReassignmentHistory()
        self.on_change: PartitionChanged = lambda *_: None
        """Called with the topic, the index and the states of a partition before and after."""

    def began(self, process: NodeLoop, find: Callable[[], MetadataLog | None]) -> None:
        """Observe a new process; ``find`` returns its metadata log once it exists."""
        self._processes[process] = _Seen(find)

    def reset_node(self, name: str) -> None:
        """Drop the epochs of a node whose disk was wiped."""
        self._epochs.pop(name, None)

    def check(self, process: NodeLoop) -> None:
        seen = self._processes.get(process)
        if seen is None:
            return
        log = seen.log
        if log is None:
            log = seen.log = seen.find()
            if log is None:
                return
            self._published(process.host.name, None, log.current)
            log.subscribe(lambda delta, image: self._published(process.host.name, delta, image))
        if (
            log.epoch != seen.epoch
            or log.leader != seen.leader
            or log.high_watermark != seen.high_watermark
        ):
            self._check(process.host.name, seen, log)

    def _fail(self, message: str) -> None:
        self._world.fail(SafetyViolation(message))

    # The quorum

    def _check(self, name: str, seen: _Seen, log: MetadataLog) -> None:
        epoch, leader, high_watermark = int(log.epoch), log.leader, int(log.high_watermark)
        newest = max(seen.epoch, self._epochs.get(name, -1))
        if epoch < newest:
            self._fail(f"{name} went back from epoch {newest} to {epoch}")
        if high_watermark < seen.high_watermark:
            self._fail(
                f"{name}: the high watermark of the metadata went back from "
                f"{seen.high_watermark} to {high_watermark}"
            )
        if leader is not None and (leader, epoch) != (seen.leader, seen.epoch):
            known = self.leaders.setdefault(epoch, int(leader))
            if known != leader:
                self._fail(f"{name} follows {leader} in epoch {epoch}, which {known} leads")
            if leader == log.node_id:
                self._became_leader(name, log, epoch)
        seen.epoch, seen.leader, seen.high_watermark = epoch, leader, high_watermark

    def _became_leader(self, name: str, log: MetadataLog, epoch: int) -> None:
        self.elections += 1
        self._world.trace(f"{name}: leads the quorum in epoch {epoch}")
        if epoch == max(self.leaders) and log.end_offset <= self.latest.offset:
            self._fail(
                f"{name} leads epoch {epoch} with a log that ends at {log.end_offset}, but offset "
                f"{self.latest.offset} was committed before"
            )

    # Images

    def _published(self, name: str, delta: Delta | None, image: Image) -> None:
        offset = int(image.offset)
        self.images += 1
        # An epoch in memory may be lost with the process; a published one was on its disk.
        self._epochs[name] = max(self._epochs.get(name, -1), int(image.epoch))
        if offset >= 0 and offset % self.compare_every == 0:
            author, known = self._images.setdefault(offset, (name, image))
            if known is not image and known != image:
                self._fail(
                    f"{name} and {author} have different images at offset {offset}: "
                    f"{_difference(image, known)}"
                )
        if offset > self.latest.offset:
            before, self.latest = self.latest, image
            self._check_partitions(before, delta, image)
            if self.has_plans_only and before.configs is not image.configs:
                left = throttle_left_behind(image)
                if left is not None:
                    self._fail(left)

    def _check_partitions(self, before: Image, delta: Delta | None, image: Image) -> None:
        changed = image.topics_by_id if delta is None else delta.changed_topics
        for topic_id in changed:
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                continue
            old = before.topics_by_id.get(topic_id)
            for index, partition in enumerate(topic.partitions):
                where = f"{topic.name}-{index}"
                known = old.partitions[index] if old and index < len(old.partitions) else None
                self._check_partition(where, known, partition)
                if known is not None and known is not partition:
                    self.reassignments.changed((topic_id, index), known, partition)
                    self.on_change(str(topic.name), index, known, partition)

    def _check_partition(self, where: str, old: PartitionImage | None, new: PartitionImage) -> None:
        if new.leader != NO_LEADER and new.leader not in new.isr:
            self._fail(f"{where} is led by {new.leader}, which is not in the ISR {new.isr}")
        if any(node not in new.replicas for node in (*new.isr, *new.elr)):
            self._fail(f"{where}: ISR {new.isr}, ELR {new.elr} of replicas {new.replicas}")
        if any(node in new.isr for node in new.elr):
            self._fail(f"{where}: ISR {new.isr} and ELR {new.elr} have a node in common")
        if old is None or old is new:
            return
        if new.leader_epoch < old.leader_epoch:
            self._fail(f"{where}: leader epoch {new.leader_epoch} after {old.leader_epoch}")
        if new.partition_epoch < old.partition_epoch:
            self._fail(f"{where}: partition epoch {new.partition_epoch} after it was higher")
        if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
            self._fail(f"{where}: {old.leader} and {new.leader} lead epoch {new.leader_epoch}")


def _difference(one: Image, other: Image) -> str:
    """The first field in which two images differ."""
    for field in Image.__struct_fields__:
        mine, known = getattr(one, field), getattr(other, field)
        if mine != known:
            return f"{field} {str(mine)[:400]} and {str(known)[:400]}"
    return "no field differs"
