"""Faults of the quorum: metadata is one history, and a majority can change it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from riverrun.chaos.faults import disks
from riverrun.chaos.scenarios.arena import Arena, PromiseBroken
from riverrun.chaos.scenarios.scenario import Scenario
from riverrun.chaos.scenarios.voter_changes import add_voter, make_voter_again, remove_voter

FAMILY = "quorum"
SMALL_DISK_BYTES = 96 << 20
AWAY_SECONDS = 2.5
SLOW_FSYNC_SECONDS = 0.3
CLOCK_JUMP_SECONDS = 3600.0


def quorum_leader_killed(arena: Arena) -> None:
    leader = arena.controller()
    arena.kill(leader)
    arena.metadata_progress()
    arena.start(leader)
    arena.metadata_progress()


def _each(arena: Arena, hurt: Callable[[int], None], mend: Callable[[int], None]) -> None:
    for number in arena.ids:
        hurt(number)
        arena.metadata_progress()
        mend(number)
        arena.metadata_progress()
        arena.all_in_sync()


def each_killed(arena: Arena) -> None:
    _each(arena, arena.kill, arena.start)


def each_paused(arena: Arena) -> None:
    _each(arena, arena.pause, arena.resume)


# These isolate the node from clients too. Otherwise it would accept requests of the administrator,
# which then waits without end. Apache Kafka behaves the same.


def each_cut_off(arena: Arena) -> None:
    _each(arena, lambda number: arena.cut_off(number, clients=True), arena.heal)


def each_mute(arena: Arena) -> None:
    _each(arena, lambda number: arena.mute(number, clients=True), arena.heal)


def each_deaf(arena: Arena) -> None:
    _each(arena, lambda number: arena.deafen(number, clients=True), arena.heal)


def two_of_three_gone(arena: Arena) -> None:
    """The remaining node changes no metadata but still serves it."""
    leader = arena.controller()
    gone = [leader, arena.rng.choice(arena.others(leader))]
    left = arena.others(*gone)[0]
    arena.kill(*gone)
    arena.wait(0.5)
    since = arena.history.now()
    arena.expect(
        lambda: arena.probe.topic_on(left, arena.workload.topic) is not None,
        seconds=5,
        what=f"node {left} serves metadata",
    )
    arena.wait(AWAY_SECONDS)
    if arena.workload.administered(since=since):
        raise PromiseBroken("metadata changed without a majority")
    arena.start(*gone)
    arena.metadata_progress(seconds=20)


def quorum_all_restarted(arena: Arena) -> None:
    arena.kill(*arena.ids)
    arena.start(*arena.ids)
    arena.metadata_progress(seconds=20)


def _damaged(arena: Arena, damage: Callable[[Path], object], what: str) -> None:
    victim = arena.rng.choice(arena.others(arena.controller()))
    arena.metadata_progress(10)
    arena.kill(victim)
    data = arena.cluster.nodes[victim].place.data
    log = disks.largest(sorted((data / "__cluster_metadata-0").glob("*.log")))
    arena.note(f"{what} {log.name} of the metadata on node {victim}")
    damage(log)
    arena.metadata_progress()
    arena.start(victim)
    arena.metadata_progress()
    _caught_up(arena, victim)


def _caught_up(arena: Arena, number: int) -> None:
    arena.expect(
        lambda: all(number in known for known in arena.probe.brokers().values()),
        seconds=25,
        what=f"node {number} is a live broker for all nodes",
    )


def metadata_truncated(arena: Arena) -> None:
    _damaged(arena, lambda path: disks.cut(path, keep=0.6), "truncate")


def metadata_corrupted(arena: Arena) -> None:
    _damaged(arena, lambda path: disks.flip(path, where=0.5), "damage")


def disk_wiped(arena: Arena) -> None:
    victim = arena.rng.choice(arena.others(arena.controller()))
    arena.kill(victim)
    arena.note(f"wipe the disk of node {victim}")
    arena.cluster.wipe(victim)
    arena.metadata_progress()
    arena.start(victim)
    _caught_up(arena, victim)
    arena.all_in_sync(seconds=30)


def clocks_jump(arena: Arena) -> None:
    for number, jump in zip(arena.ids, (1, -1, 24), strict=False):
        arena.impair(number, clock_seconds=jump * CLOCK_JUMP_SECONDS)
    arena.wait(1.5)
    arena.metadata_progress()
    arena.progress_everywhere()
    for number in arena.ids:
        arena.impair(number)
    arena.metadata_progress()


def slow_fsync(arena: Arena) -> None:
    leader = arena.controller()
    arena.impair(leader, fsync_seconds=SLOW_FSYNC_SECONDS)
    arena.metadata_progress()
    arena.progress_everywhere()
    for number in arena.others(leader):
        arena.impair(number, fsync_seconds=SLOW_FSYNC_SECONDS)
    arena.metadata_progress(seconds=30)
    for number in arena.ids:
        arena.impair(number)
    arena.metadata_progress()


def quorum_leader_disk_full(arena: Arena) -> None:
    leader = arena.controller()
    home = arena.cluster.nodes[leader].place.data.parent
    arena.note(f"fill the disk of node {leader}")
    ballast = disks.fill(home)
    arena.metadata_progress(seconds=20)
    arena.note(f"make room on the disk of node {leader}")
    ballast.unlink()
    arena.wait(0.5)
    if arena.cluster.died():
        arena.start(leader)
    arena.metadata_progress()


def voter_removed_while_the_leader_dies(arena: Arena) -> None:
    leader = arena.controller()
    leaving = arena.rng.choice(arena.others(leader))
    arena.note(f"remove voter {leaving}")
    change = remove_voter(arena, leaving)
    arena.kill(leader)
    arena.note(f"the removal {change.outcome()}")
    arena.wait(1.0)
    arena.start(leader)
    arena.metadata_progress(seconds=20)
    make_voter_again(arena, leaving)


def voter_added_while_the_leader_dies(arena: Arena) -> None:
    leaving = arena.rng.choice(arena.others(arena.controller()))
    arena.note(f"remove voter {leaving}")
    arena.note(f"the removal {remove_voter(arena, leaving).outcome()}")
    leader = arena.controller()
    arena.note(f"add voter {leaving}")
    change = add_voter(arena, leaving)
    arena.kill(leader)
    arena.note(f"the addition {change.outcome()}")
    arena.wait(1.0)
    arena.start(leader)
    arena.metadata_progress(seconds=20)
    make_voter_again(arena, leaving)


def snapshots_under_load(arena: Arena) -> None:
    """A node that was down finds the log truncated and fetches a snapshot instead."""
    away = arena.rng.choice(arena.others(arena.controller()))
    arena.kill(away)
    arena.metadata_progress(30, seconds=40)
    leader = arena.controller()
    folder = arena.cluster.nodes[leader].place.data / "__cluster_metadata-0"
    arena.expect(
        lambda: len(list(folder.glob("*.checkpoint"))) >= 1,
        seconds=20,
        what=f"node {leader} writes a snapshot",
    )
    arena.start(away)
    _caught_up(arena, away)
    arena.metadata_progress()


_scenario = partial(Scenario, family=FAMILY, has_administrator=True)

SCENARIOS = (
    _scenario(happen=quorum_leader_killed, about="The quorum leader is killed."),
    _scenario(happen=each_killed, about="Each node is killed in turn."),
    _scenario(happen=each_paused, about="Each node is paused in turn."),
    _scenario(happen=each_cut_off, about="Each node is isolated in turn."),
    _scenario(happen=each_mute, about="Each node in turn cannot send but can receive."),
    _scenario(happen=each_deaf, about="Each node in turn can send but cannot receive."),
    _scenario(
        happen=two_of_three_gone,
        about="Without a majority metadata does not change and can be read.",
    ),
    _scenario(happen=quorum_all_restarted, about="All nodes are killed and restarted."),
    _scenario(happen=metadata_truncated, about="The metadata log of a minority is truncated."),
    _scenario(happen=metadata_corrupted, about="The metadata log of a minority is corrupted."),
    _scenario(happen=disk_wiped, about="The disk of a minority is wiped."),
    _scenario(happen=clocks_jump, about="Clocks jump by hours.", needs_agent=True),
    _scenario(
        happen=slow_fsync,
        about="fsync is slow, first on the leader, then on all nodes.",
        needs_agent=True,
    ),
    _scenario(
        happen=quorum_leader_disk_full,
        about="The disk of the quorum leader is full.",
        small_disk_bytes=SMALL_DISK_BYTES,
        settings={"log.segment.bytes": str(4 << 20)},
    ),
    _scenario(
        happen=voter_removed_while_the_leader_dies,
        about="A voter is removed while the leader is killed.",
    ),
    _scenario(
        happen=voter_added_while_the_leader_dies,
        about="A voter is added while the leader is killed.",
    ),
    _scenario(
        happen=snapshots_under_load,
        about="Snapshots are written and fetched under load.",
        settings={"metadata.log.max.record.bytes.between.snapshots": "5000"},
    ),
)
