"""Faults of replicas: no acknowledged record is lost, and the cluster recovers."""

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
        lambda: arena.leader() != leader, seconds=10, what=f"a leader other than node {leader}"
    )
    arena.wait(PAUSE_SECONDS - 2)
    arena.resume(leader)
    arena.progress_everywhere()


def minority_partition(arena: Arena) -> None:
    """Clients still reach the old leader, which must not acknowledge records alone."""
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
        what=f"the majority elects a leader other than node {leader}",
    )
    arena.wait(1.0)
    arena.heal(leader)
    arena.progress_everywhere()


def majority_partition(arena: Arena) -> None:
    """Every node is isolated, so no leader has a follower and none may acknowledge."""
    for number in arena.ids:
        arena.cut_off(number)
    # The high watermark stops until the followers leave the ISR, then min.insync.replicas applies.
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
    """The replica leaves the ISR and returns when the link is fast again."""
    view = arena.partition()
    follower = next(number for number in view.replicas if number != view.leader)
    arena.slow_link(view.leader, follower, bytes_per_second=1500)
    arena.isr_is(2, seconds=20)
    arena.progress()
    arena.heal(follower)
    arena.isr_is(3, seconds=20)


def two_killed(arena: Arena) -> None:
    """With one replica left, acks=all is rejected and no record is lost."""
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
    other = arena.rng.choice(arena.others(leader))
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
    """Leadership moves away from a full disk; the replica returns when there is room again."""
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
    """A leader stops when a sync fails, and others lead before its session expires."""
    leader = arena.leader()
    arena.impair(leader, fsync_fails=1)
    arena.progress_everywhere()
    arena.expect(arena.cluster.died, seconds=10, what=f"node {leader} stops")
    arena.impair(leader)
    arena.start(leader)
    arena.all_in_sync()


def disk_corrupted(arena: Arena) -> None:
    """The log of a replica is corrupted while its node is down, and repaired after the start."""
    leader = arena.leader()
    arena.kill(leader)
    log = disks.largest(_logs(arena, leader))
    arena.note(f"damage {log.name} of {log.parent.name} on node {leader}")
    disks.flip(log)
    arena.progress_everywhere()
    arena.start(leader)
    arena.all_in_sync()
    # The repaired replica must be complete when it becomes the leader.
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
    """A follower that lacks records must not become the leader."""
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
        victim = arena.rng.choice(arena.ids)
        if arena.rng.random() < 0.25:
            arena.pause(victim)
            arena.wait(arena.rng.uniform(0.1, 2.5))
            arena.resume(victim)
        else:
            arena.kill(victim)
            arena.wait(arena.rng.uniform(0.0, 1.0))
            arena.start(victim)
        arena.wait(arena.rng.uniform(0.0, 1.5))
    arena.progress_everywhere(seconds=20)


def clients_cut_off(arena: Arena) -> None:
    """Clients lose the leader by dropped bytes, resets and half-open connections."""
    leader = arena.leader()
    for mode in (Mode.DROP, Mode.CUT):
        arena.note(f"clients and node {leader}: {mode}")
        arena.cluster.network.separate(CLIENTS, leader, mode=mode)
        arena.wait(1.0)
        arena.heal(leader)
        arena.progress_everywhere()
    arena.note(f"node {leader} has half-open connections")
    arena.cluster.network.half_open(leader)
    arena.wait(2.0)
    arena.heal(leader)
    arena.progress_everywhere()


_scenario = partial(Scenario, family=FAMILY)

SCENARIOS = (
    _scenario(
        happen=leader_killed,
        about="A partition leader is killed.",
        may_fail_sends=False,
        silence_seconds_max=5.0,
    ),
    _scenario(
        happen=leader_paused, about="The leader is paused for longer than its session timeout."
    ),
    _scenario(
        happen=minority_partition,
        about="The leader is isolated from other nodes, not from clients.",
    ),
    _scenario(happen=majority_partition, about="Every node is isolated."),
    _scenario(happen=asymmetric_partition, about="The leader cannot send, then cannot receive."),
    _scenario(
        happen=follower_slow,
        about="A slow follower leaves the ISR, and returns when it is fast again.",
        may_fail_sends=False,
    ),
    _scenario(happen=two_killed, about="Two of three nodes are killed: acks=all is rejected."),
    _scenario(happen=two_killed_at_once, about="Two of three nodes are killed at once."),
    _scenario(happen=all_restarted, about="All nodes are killed and restarted."),
    _scenario(
        happen=disk_full,
        about="The disk of a leader is full, then has free space again.",
        small_disk_bytes=SMALL_DISK_BYTES,
        settings={"log.segment.bytes": str(4 << 20)},
    ),
    _scenario(
        happen=disk_failed,
        about="The disk of a leader fails: its node stops and others lead at once.",
        may_fail_sends=False,
        silence_seconds_max=3.0,
        needs_agent=True,
        settings={"log.flush.before.ack": "true"},
    ),
    _scenario(happen=disk_corrupted, about="A replica is corrupted while its node is down."),
    _scenario(
        happen=rolling_restart,
        about="Every node is restarted in turn: no request fails.",
        may_fail_sends=False,
        silence_seconds_max=3.0,
    ),
    _scenario(
        happen=leader_killed_while_catching_up,
        about="The leader is killed while a follower catches up.",
    ),
    _scenario(happen=kill_storm, about="Nodes are killed and paused at random."),
    _scenario(
        happen=clients_cut_off, about="Clients lose their connections to a leader in three ways."
    ),
)
