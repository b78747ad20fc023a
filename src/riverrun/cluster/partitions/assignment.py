"""The assignment of one partition to brokers, and how a reassignment changes it (KIP-455).

    settled ──start──> reassigning ──start with another target──> reassigning
                           ├──the new replicas are in sync──> settled, on the target
                           └──cancel──> settled, on the original replicas

While a partition is reassigned, its replicas are the target followed by those that leave.
``adding`` names every replica that the reassignment has added, ``removing`` every replica that
leaves at its end. A replica that an earlier target added and a later one dropped is in both: it
may lead, so it stays until the end, and it is not one of the original replicas. So the original
replicas are always those that are not in ``adding``, without a record of their own. Kafka computes
a second target against all replicas instead, and a cancel keeps brokers of the first target.

The order of the original replicas matters: the first one is the preferred leader. A plan knows it.
Otherwise the replicas that leave, which are kept in their original order, return to the places of
new ones, and the present leader, if it is an original replica, becomes the preferred one. So a
cancel changes no leadership, and a broker that is replaced by another one returns to its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from riverrun.metadata.image import DIRECTORY_UNASSIGNED, Image, PartitionImage
from riverrun.model.ids import NodeId

Nodes = tuple[NodeId, ...]


class Assignment(NamedTuple):
    """``directories`` are in the order of ``replicas``."""

    replicas: Nodes
    directories: tuple[UUID, ...]
    adding: Nodes = ()
    removing: Nodes = ()

    @property
    def target(self) -> Nodes:
        return without(self.replicas, self.removing)

    @property
    def copying(self) -> Nodes:
        """The replicas of the target that the reassignment has added."""
        return without(self.adding, self.removing)


def current(partition: PartitionImage) -> Assignment:
    return Assignment(
        partition.replicas, partition.directories, partition.adding, partition.removing
    )


def is_reassigning(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def start(image: Image, partition: PartitionImage, target: Sequence[NodeId]) -> Assignment:
    """The assignment in which a reassignment to ``target`` begins, or continues."""
    leaves = without(partition.replicas, target)
    originals = original_order(partition)
    leaving = (*[node for node in originals if node in leaves], *without(leaves, originals))
    added = tuple(node for node in target if node not in partition.replicas)
    dropped = tuple(node for node in leaving if node in partition.adding)
    kept = tuple(node for node in target if node in partition.adding)
    known = dict(zip(partition.replicas, partition.directories, strict=True))
    replicas = (*target, *leaving)
    return Assignment(
        replicas,
        tuple(known.get(node) or only_directory(image, node) for node in replicas),
        tuple(sorted(added + kept + dropped)),
        tuple(sorted(leaving)),
    )


def cancel(partition: PartitionImage, order: Nodes | None = None) -> Assignment:
    """The original replicas, in the given order if it is one of them."""
    now = current(partition)
    originals = without(now.replicas, now.adding)
    if order is None or sorted(order) != sorted(originals):
        order = led_first(original_order(partition), partition.leader)
    return _limited(now, order)


def original_order(partition: PartitionImage) -> Nodes:
    """The original replicas, in their order as far as it is known."""
    now = current(partition)
    leaving = tuple(node for node in without(now.replicas, now.adding) if node in now.removing)
    return returned(now.target, leaving, now.adding)


def returned(target: Nodes, leaving: Nodes, adding: Collection[NodeId]) -> Nodes:
    """The target with the replicas that leave in the places of those that were added."""
    left = list(leaving)
    order: list[NodeId] = []
    for node in target:
        if node not in adding:
            order.append(node)
        elif left:
            order.append(left.pop(0))
    return (*order, *left)


def led_first(replicas: Nodes, leader: NodeId | None) -> Nodes:
    """The replicas with the leader, if it is one of them, as the preferred leader."""
    if leader is None or leader not in replicas:
        return replicas
    return (leader, *without(replicas, (leader,)))


def complete(assignment: Assignment, isr: Collection[NodeId], minimum: int) -> Assignment | None:
    """The target if this in-sync set ends the reassignment, else None.

    The rule is that of Kafka 4.3.1 (KAFKA-19975). Every new replica must be in sync, but an old
    one that stays may be down, unless the reassignment removes more replicas than it adds.

    One rule is stricter than Kafka's: the end must not take in-sync replicas away that the
    partition needs for ``minimum``, its min.insync.replicas. With [1,2,3] to [4,2,3] and 1 and 4
    in sync, only 4 would be left, and writes would stop. The reassignment waits until 2 or 3 is
    back, and writes continue. A target with fewer replicas has a lower minimum.
    """
    removing, copying = assignment.removing, assignment.copying
    if not removing and not assignment.adding:
        return None
    if all(node in removing for node in isr) or any(node not in isr for node in copying):
        return None
    if len(copying) < len(removing) and any(node not in isr for node in assignment.target):
        return None
    kept = sum(1 for node in isr if node not in removing)
    if kept < min(minimum, len(assignment.target)) and kept < len(isr):
        return None
    return _limited(assignment, assignment.target)


def only_directory(image: Image, node: NodeId) -> UUID:
    """The broker's only directory. With several, the broker assigns one later."""
    directories = image.brokers[node].directories
    return directories[0] if len(directories) == 1 else DIRECTORY_UNASSIGNED


def without(nodes: Nodes, others: Collection[NodeId]) -> Nodes:
    return tuple([node for node in nodes if node not in others])


def _limited(assignment: Assignment, replicas: Nodes) -> Assignment:
    known = dict(zip(assignment.replicas, assignment.directories, strict=True))
    return Assignment(replicas, tuple(known[node] for node in replicas))
