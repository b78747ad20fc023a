"""Trouble with replicas: nothing that was acknowledged is lost, and service returns."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from riverrun.chaos.faults import disks
from riverrun.chaos.faults.link_faults import CLIENTS, Mode
from riverrun.chaos.scenarios.arena import Arena
from riverrun.chaos.scenarios.scenario import Scenario

FAMILY = "replication"
SMALL_DISK_BYTES = 96 << 20
STORM_SECONDS = 10.0
PAUSE_SECONDS = 3.5
"""Longer than a broker's session."""


def leader_killed(arena: Arena) -> None:
    leader = arena.leader()
    arena.kill(leader)
    arena.progress_everywhere()
    arena.wait(0.5)
    arena.start(leader)


def leader_paused(arena: Arena) -> None:
    leader = arena.leader()
    arena.pause(leader)
    arena.expect(
        lambda: arena.leader() != leader, seconds=10, what=f"another leader than node {leader}"
    )
    arena.wait(PAUSE_SECONDS - 2)
    arena.resume(leader)
    arena.progress_everywhere()


def minority_partition(arena: Arena) -> None:
    """Clients still reach the old leader, which must not acknowledge anything by itself."""
    leader = arena.leader()
    arena.cut_off(leader)
    arena.expect(
        lambda: any(
            view is not None and view.partitions[0].leader not in (leader, -1)
            for view in (
                arena.probe.topic_on(n, arena.workload.topic) for n in arena.others(leader)
            )
        ),
        seconds=10,
        what=f"the majority chooses another leader than node {leader}",
    )
    arena.wait(1.0)
    arena.heal(leader)
    arena.progress_everywhere()


def majority_partition(arena: Arena) -> None:
    """Every node is alone: nobody may acknowledge, for nobody has a follower."""
    for number in arena.ids:
        arena.cut_off(number)
    # Until the followers have left the in-sync set nothing moves; after that the minimum holds it.
    with arena.nothing_acknowledged(grace_seconds=0.5):
        arena.wait(3.0)
    arena.heal()
    arena.progress_everywhere()


def asymmetric_partition(arena: Arena) -> None:
    leader = arena.leader()
    arena.mute(leader)
    arena.wait(3.0)
    arena.heal(leader)
    arena.progress_everywhere()
    leader = arena.leader()
    arena.deafen(leader)
    arena.wait(3.0)
    arena.heal(leader)
    arena.progress_everywhere()


def follower_slow(arena: Arena) -> None:
    """The replica leaves the in-sync set, and comes back when it is quick again."""
    view = arena.partition()
    follower = next(number for number in view.replicas if number != view.leader)
    arena.slow_link(view.leader, follower, bytes_per_second=1500)
    arena.isr_is(2, seconds=20)
    arena.progress()
    arena.heal(follower)
    arena.isr_is(3, seconds=20)


def two_killed(arena: Arena) -> None:
    """One after the other; with one replica left acks=all is refused, and nothing is lost."""
    leader = arena.leader()
    arena.kill(leader)
    arena.progress_everywhere()
    second = arena.leader()
    arena.kill(second)
    with arena.nothing_acknowledged(grace_seconds=0.2):
        arena.wait(2.0)
    arena.start(leader, second)
    arena.progress_everywhere(seconds=20)


def two_killed_at_once(arena: Arena) -> None:
    leader = arena.leader()
    other = arena.chance.choice(arena.others(leader))
    arena.kill(leader, other)
    with arena.nothing_acknowledged(grace_seconds=0.2):
        arena.wait(1.0)
    arena.start(leader, other)
    arena.progress_everywhere(seconds=20)


def all_restarted(arena: Arena) -> None:
    arena.kill(*arena.ids)
    arena.wait(0.5)
    arena.start(*arena.ids)
    arena.progress_everywhere(seconds=20)


def disk_full(arena: Arena) -> None:
    """The leader's disk has no more room: leadership moves, and room brings the replica back."""
    leader = arena.leader()
    home = arena.cluster.nodes[leader].place.data.parent
    arena.note(f"fill the disk of node {leader}")
    ballast = disks.fill(home)
    arena.progress_everywhere()
    arena.wait(1.0)
    arena.note(f"make room on the disk of node {leader}")
    ballast.unlink()
    arena.wait(0.5)
    if arena.cluster.died():
        arena.start(leader)


def disk_failed(arena: Arena) -> None:
    """A sync of the leader fails: it stops, and others lead before its session has ended."""
    leader = arena.leader()
    arena.torment(leader, fsync_fails=1)
    arena.progress_everywhere()
    arena.expect(arena.cluster.died, seconds=10, what=f"node {leader} stops")
    arena.torment(leader)
    arena.start(leader)
    arena.all_in_sync()


def disk_corrupted(arena: Arena) -> None:
    """Bits rot in the middle of a replica's log while its node is down; it is repaired."""
    leader = arena.leader()
    arena.kill(leader)
    log = disks.largest(_logs(arena, leader))
    arena.note(f"damage {log.name} of {log.parent.name} on node {leader}")
    disks.flip(log)
    arena.progress_everywhere()
    arena.start(leader)
    arena.all_in_sync()
    # The repaired replica must be as good as the others when it is the one that is left to lead.
    other = arena.leader()
    if other != leader:
        arena.kill(other)
        arena.progress_everywhere()
        arena.start(other)


def _logs(arena: Arena, number: int) -> list[Path]:
    data = arena.cluster.nodes[number].place.data
    return sorted(data.glob(f"{arena.workload.topic}-*/*.log"))


def rolling_restart(arena: Arena) -> None:
    for number in arena.ids:
        arena.stop(number)
        arena.start(number)
        arena.all_in_sync()
        arena.progress_everywhere()


def leader_killed_while_catching_up(arena: Arena) -> None:
    """A follower that lacks records must not lead, however few others are left."""
    view = arena.partition()
    behind = next(number for number in view.replicas if number != view.leader)
    arena.kill(behind)
    arena.progress(400)
    leader = arena.leader()
    arena.cluster.network.slow(leader, behind, bytes_per_second=3000, channel="client")
    arena.start(behind)
    arena.wait(0.7)
    arena.kill(leader)
    arena.wait(1.5)
    arena.heal(behind)
    arena.start(leader)
    arena.progress_everywhere(seconds=20)


def kill_storm(arena: Arena) -> None:
    end = arena.history.now() + STORM_SECONDS
    while arena.history.now() < end:
        victim = arena.chance.choice(arena.ids)
        if arena.chance.random() < 0.25:
            arena.pause(victim)
            arena.wait(arena.chance.uniform(0.1, 2.5))
            arena.resume(victim)
        else:
            arena.kill(victim)
            arena.wait(arena.chance.uniform(0.0, 1.0))
            arena.start(victim)
        arena.wait(arena.chance.uniform(0.0, 1.5))
    arena.progress_everywhere(seconds=20)


def clients_cut_off(arena: Arena) -> None:
    """Clients lose the leader, silently, by resets, half; nodes see each other all the time."""
    leader = arena.leader()
    for mode in (Mode.DROP, Mode.CUT):
        arena.note(f"clients and node {leader}: {mode}")
        arena.cluster.network.separate(CLIENTS, leader, mode=mode)
        arena.wait(1.0)
        arena.heal(leader)
        arena.progress_everywhere()
    arena.note(f"node {leader} forgets its connections")
    arena.cluster.network.half_open(leader)
    arena.wait(2.0)
    arena.heal(leader)
    arena.progress_everywhere()


_scenario = partial(Scenario, family=FAMILY)

SCENARIOS = (
    _scenario(
        happen=leader_killed,
        about="The leader of a partition is killed.",
        may_fail_sends=False,
        silence_seconds_max=5.0,
    ),
    _scenario(
        happen=leader_paused, about="The leader stops for longer than its session, and goes on."
    ),
    _scenario(
        happen=minority_partition,
        about="The leader is cut off from the majority, not from clients.",
    ),
    _scenario(happen=majority_partition, about="Every node is alone for a while."),
    _scenario(happen=asymmetric_partition, about="The leader is not heard, later hears nobody."),
    _scenario(
        happen=follower_slow,
        about="A follower is slow, then fast: out of the in-sync set, and back.",
        may_fail_sends=False,
    ),
    _scenario(happen=two_killed, about="Two of three are killed in turn: acks=all is refused."),
    _scenario(happen=two_killed_at_once, about="Two of three are killed at once."),
    _scenario(happen=all_restarted, about="All nodes are killed and started again."),
    _scenario(
        happen=disk_full,
        about="The disk of a leader is full, then has room again.",
        small_disk_bytes=SMALL_DISK_BYTES,
        settings={"log.segment.bytes": str(4 << 20)},
    ),
    _scenario(
        happen=disk_failed,
        about="The disk of a leader fails: its node stops, and others lead at once.",
        may_fail_sends=False,
        silence_seconds_max=3.0,
        needs_agent=True,
        settings={"log.flush.before.ack": "true"},
    ),
    _scenario(happen=disk_corrupted, about="A replica rots while its node is down."),
    _scenario(
        happen=rolling_restart,
        about="Every node is stopped and started in turn: no request fails.",
        may_fail_sends=False,
        silence_seconds_max=3.0,
    ),
    _scenario(
        happen=leader_killed_while_catching_up,
        about="The leader is killed while a follower catches up.",
    ),
    _scenario(
        happen=kill_storm, about="Nodes are killed and paused at random, one after the other."
    ),
    _scenario(
        happen=clients_cut_off, about="Clients lose their connections to a leader in three ways."
    ),
)
