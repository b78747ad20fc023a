"""The computation of a target assignment, in slices.

The assignment of a large group takes longer than other requests of the shard may wait. So it is
computed over several turns. A slice is limited by operations and not by time, so the same requests
give the same turns in the simulation. Members that change meanwhile raise the group epoch, and the
next computation includes them.

The records are written over several turns too, and that of the epoch comes last. Before it, members
on their way may already follow their new target. That is safe, because a partition stays with its
owner until it is given up. A new coordinator that finds some of the records computes again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from uuid import UUID

from msgspec import Struct

from riverrun.coordinator.consumer.assignors import ASSIGNORS, AssignedMember
from riverrun.coordinator.consumer.catalog import CatalogTopic, GroupCatalog
from riverrun.coordinator.consumer.records import TopicSlot
from riverrun.coordinator.consumer.state import EpochGroup

Targets = dict[str, tuple[TopicSlot, ...]]
SORT_WORK = 4
"""Sorting a partition costs so many operations."""
RECORD_WORK = 10
"""A record costs as much as so many partitions."""


class TargetComputation(Struct):
    epoch: int
    """The group epoch when it began."""
    assignor: str
    work: Generator[int, None, Targets]
    members: int = 0
    untaken: list[tuple[str, tuple[TopicSlot, ...]]] | None = None
    """Targets that were not written yet; None until they are computed."""

    def advance(self, work_max: int) -> bool:
        """Do so much work and at least one step. True once the targets are computed."""
        done = 0
        while self.untaken is None and done < work_max:
            try:
                done += next(self.work)
            except StopIteration as finished:
                targets: Targets = finished.value
                self.members = len(targets)
                self.untaken = list(targets.items())
                self.untaken.reverse()
        return self.untaken is not None

    def take(self, work_max: int) -> Iterator[tuple[str, tuple[TopicSlot, ...]]]:
        """The next targets, about so much work to write, and at least one."""
        done = 0
        while self.untaken and done < work_max:
            member_id, slots = self.untaken.pop()
            done += RECORD_WORK + len(slots)
            yield member_id, slots

    @property
    def is_taken(self) -> bool:
        return self.untaken is not None and not self.untaken


def begin_targets(group: EpochGroup, view: GroupCatalog, assignor: str) -> TargetComputation:
    return TargetComputation(group.epoch, assignor, _compute(group, view, assignor))


def _compute(group: EpochGroup, view: GroupCatalog, assignor: str) -> Generator[int, None, Targets]:
    known = {name: view.topic(name) for name in group.subscribed_topics()}
    counts = {topic.id: topic.partitions for topic in known.values() if topic is not None}
    yield len(known)
    members = yield from _members(group, known)
    result = yield from ASSIGNORS[assignor](members, counts)
    targets: Targets = {}
    for member_id, slots in result.items():
        targets[member_id] = tuple(sorted(slots, key=_slot_order))
        yield 1 + SORT_WORK * len(slots)
    return targets


def _slot_order(slot: TopicSlot) -> tuple[int, int]:
    """The order of ids, without the slow comparison of UUIDs."""
    return (slot[0].int, slot[1])


def _members(
    group: EpochGroup, known: dict[str, CatalogTopic | None]
) -> Generator[int, None, list[AssignedMember]]:
    """The members as the assignor sees them, with one object for equal subscriptions."""
    members: list[AssignedMember] = []
    subscriptions: dict[tuple[tuple[str, ...], str | None], tuple[UUID, ...]] = {}
    # The order decides which member gets which partitions. Ids do not change over failovers.
    for member_id in sorted(group.members):
        member = group.members.get(member_id)
        if member is None:
            continue  # it has left since the computation began
        details = member.details
        key = (details.topics, details.regex)
        topics = subscriptions.get(key)
        if topics is None:
            found = (known.get(name) for name in sorted(group.topics_of(member)))
            topics = tuple(topic.id for topic in found if topic is not None)
            subscriptions[key] = topics
        members.append(
            AssignedMember(
                member_id=member_id,
                instance_id=details.instance_id,
                topics=topics,
                former=group.targets.get(member_id, ()),
            )
        )
        yield 1 + len(details.topics) // SORT_WORK
    return members
