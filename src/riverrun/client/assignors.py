"""The range and roundrobin assignors, as Kafka defines them.

The leader of a group assigns partitions to members that may use other clients, so the result must
equal what those clients would compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from riverrun.client.consumer_protocol import Assignment


class Subscriber(Struct, frozen=True, kw_only=True):
    """A member with its subscription, as the leader of the group receives it."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members come first, ordered by instance id, which survives restarts (KIP-345)."""
        is_dynamic = self.instance_id is None
        return is_dynamic, self.member_id if self.instance_id is None else self.instance_id


Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], dict[str, Assignment]]
"""(members, number of partitions by topic) -> assignment by member id."""


def assign_ranges(
    members: Sequence[Subscriber], counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """Contiguous ranges of each topic. The first members get the remainder, one partition each."""
    assigned: dict[str, dict[str, tuple[int, ...]]] = {member.member_id: {} for member in members}
    ranked = sorted(members, key=lambda member: member.rank)
    for topic, count in sorted(counts.items()):
        readers = [member for member in ranked if topic in member.topics]
        start = 0
        for place, member in enumerate(readers):
            size = count // len(readers) + (place < count % len(readers))
            if size:
                assigned[member.member_id][topic] = tuple(range(start, start + size))
            start += size
    return dict(assigned)


def assign_round_robin(
    members: Sequence[Subscriber], counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """All partitions of all topics in turn, skipping members that do not subscribe to the topic."""
    assigned: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
    ranked = sorted(members, key=lambda member: member.rank)
    place = 0
    for topic, count in sorted(counts.items()):
        if not any(topic in member.topics for member in ranked):
            continue
        for partition in range(count):
            while topic not in ranked[place % len(ranked)].topics:
                place += 1
            assigned[ranked[place % len(ranked)].member_id].setdefault(topic, []).append(partition)
            place += 1
    return {
        member_id: {topic: tuple(partitions) for topic, partitions in topics.items()}
        for member_id, topics in assigned.items()
    }


ASSIGNORS: Mapping[str, Assignor] = {"range": assign_ranges, "roundrobin": assign_round_robin}
"""By protocol name, the preferred one first."""
