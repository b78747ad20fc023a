"""Remembers where reassignments began and ended, to check cancelled ones."""

from __future__ import annotations

from typing import NamedTuple

from riverrun.cluster.partitions.assignment import is_reassigning
from riverrun.metadata.image import PartitionImage
from riverrun.model.ids import NodeId, TopicId

Key = tuple[TopicId, int]


class EndedReassignment(NamedTuple):
    """``original`` is None if the start was not seen."""

    original: tuple[NodeId, ...] | None
    replicas: tuple[NodeId, ...]

    @property
    def is_where_it_began(self) -> bool:
        return self.original is None or sorted(self.original) == sorted(self.replicas)


class ReassignmentHistory:
    """Follows the committed states of all partitions, in order."""

    def __init__(self) -> None:
        self._originals: dict[Key, tuple[NodeId, ...]] = {}
        self.last: dict[Key, EndedReassignment] = {}
        """The newest reassignment of each partition that has ended."""

    def changed(self, key: Key, old: PartitionImage, new: PartitionImage) -> None:
        if new.partition_epoch != old.partition_epoch + 1:
            # The states in between were not seen.
            self._originals.pop(key, None)
        elif is_reassigning(new):
            if not is_reassigning(old):
                self._originals[key] = old.replicas
        elif is_reassigning(old):
            self.last[key] = EndedReassignment(self._originals.pop(key, None), new.replicas)
