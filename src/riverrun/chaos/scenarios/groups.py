"""Faults under a consumer group: one owner per partition, nothing skipped, no commit undone.

The members are processes of confluent-kafka with the consumer protocol (KIP-848). They are killed
too, and some groups move from the classic protocol to it and back.
"""

from __future__ import annotations

from functools import partial

from riverrun.chaos.groups.load import MEMBERS, GroupLoad
from riverrun.chaos.groups.member import GroupProtocol
from riverrun.chaos.scenarios.arena import Arena
from riverrun.chaos.scenarios.scenario import Scenario

FAMILY = "groups"
ROUNDS = 3
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}


def group_coordinator_killed(arena: Arena) -> None:
    group = _group(arena)
    group.start(GroupProtocol.CONSUMER)
    for _ in range(ROUNDS):
        node = arena.group_coordinator()
        # A member joins while the coordinator dies, so partitions are on their way.
        group.join(GroupProtocol.CONSUMER)
        arena.wait(arena.rng.uniform(0.2, 1.2))
        arena.kill(node)
        group.progress()
        arena.start(node)
        group.leave()
        arena.wait(0.5)
    group.progress()


def group_members_killed(arena: Arena) -> None:
    group = _group(arena)
    group.start(GroupProtocol.CONSUMER)
    for number in range(ROUNDS):
        group.kill()
        group.join(GroupProtocol.CONSUMER)
        if number == 1:
            node = arena.group_coordinator()
            arena.kill(node)
            arena.start(node)
        group.progress()


def group_migrated(arena: Arena) -> None:
    """Rolling, one member after the other, and back. The coordinator dies in the middle of both."""
    group = _group(arena)
    group.start(GroupProtocol.CLASSIC)
    for protocol in (GroupProtocol.CONSUMER, GroupProtocol.CLASSIC):
        for number in range(MEMBERS):
            if number == 1:
                group.kill()
            else:
                group.leave()
            group.join(protocol)
            if number == 1:
                node = arena.group_coordinator()
                arena.kill(node)
                group.progress()
                arena.start(node)
            else:
                group.progress()


def _group(arena: Arena) -> GroupLoad:
    assert arena.groups is not None, "the scenario has a group"
    return arena.groups


_scenario = partial(Scenario, family=FAMILY, has_groups=True, settings=SETTINGS)
SCENARIOS = (
    _scenario(
        about="The coordinator of a group is killed while members join and leave.",
        happen=group_coordinator_killed,
    ),
    _scenario(
        about="Members of a group are killed and replaced, once with the coordinator.",
        happen=group_members_killed,
    ),
    _scenario(
        about="A group moves to the consumer protocol and back, member by member.",
        happen=group_migrated,
    ),
)
