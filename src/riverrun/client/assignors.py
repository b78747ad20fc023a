"""Who reads which partition: the two assignors that all clients have, as Kafka defines them.

The leader of a group computes this for members of any client, so the result must be what their own
leaders would compute; then a group does not care who leads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from riverrun.client.consumer_protocol import Assignment


class Subscriber(Struct, frozen=True, kw_only=True):
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members come first, by the name that survives their restarts (KIP-345)."""
        is_dynamic = self.instance_id is None
        return is_dynamic, self.member_id if self.instance_id is None else self.instance_id


Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], dict[str, Assignment]]
"""(members, number of partitions by topic) -> assignment by member id."""


def assign_ranges(
    members: Sequence[Subscriber], counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """Each topic in neighbouring runs, the first members get one more where it does not divide."""
    given: dict[str, dict[str, tuple[int, ...]]] = {member.member_id: {} for member in members}
    ranked = sorted(members, key=lambda member: member.rank)
    for topic, count in sorted(counts.items()):
        readers = [member for member in ranked if topic in member.topics]
        start = 0
        for place, member in enumerate(readers):
            size = count // len(readers) + (place < count % len(readers))
            if size:
                given[member.member_id][topic] = tuple(range(start, start + size))
            start += size
    return dict(given)


def assign_in_turn(
    members: Sequence[Subscriber], counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """All partitions of all topics in turn, passing over members that do not want the topic."""
    given: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
    ranked = sorted(members, key=lambda member: member.rank)
    turn = 0
    for topic, count in sorted(counts.items()):
        if not any(topic in member.topics for member in ranked):
            continue
        for partition in range(count):
            while topic not in ranked[turn % len(ranked)].topics:
                turn += 1
            given[ranked[turn % len(ranked)].member_id].setdefault(topic, []).append(partition)
            turn += 1
    return {
        member_id: {topic: tuple(partitions) for topic, partitions in topics.items()}
        for member_id, topics in given.items()
    }


ASSIGNORS: Mapping[str, Assignor] = {"range": assign_ranges, "roundrobin": assign_in_turn}
"""By the names that all clients know, the preferred one first."""
