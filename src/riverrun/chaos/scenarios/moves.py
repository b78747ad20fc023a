"""Faults while partitions move: no move loses a record, and none leaves anything behind.

Partitions of the clients' topic and of the groups' offsets move all the time, by requests and by
plans. Some moves are cancelled, and some get another target.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from riverrun.chaos.clients.addresses import confluent_address
from riverrun.chaos.clients.consumers import QUICK
from riverrun.chaos.clients.workload import Load, create_topic
from riverrun.chaos.faults import disks
from riverrun.chaos.moves.leftovers import ListedMove, ongoing_moves
from riverrun.chaos.moves.mover import MovingAdministrator
from riverrun.chaos.probe import NO_RESPONSE
from riverrun.chaos.scenarios.arena import Arena
from riverrun.chaos.scenarios.scenario import Scenario
from riverrun.chaos.scenarios.voter_changes import make_voter_again

FAMILY = "moves"
NODES = 4
ROUNDS = 3
AWAY_SECONDS_MAX = 3.0
"""Longer than a broker's session, so that some nodes return before it ends and some after."""
CUT_SECONDS = 4.0
"""Longer than a broker's session and the time after which a follower leaves the ISR."""
FULL_SECONDS = 4.0
FIND_SECONDS_MAX = 20.0
PROGRESS_SECONDS_MAX = 30.0
ROLLBACK_SECONDS_MAX = 20.0
COMMAND_SECONDS_MAX = 60.0
SMALL_DISK_BYTES = 96 << 20
SETTINGS = {"reassignment.stall.timeout.ms": "5000", "reassignment.grace.ms": "2000"}
"""Rollbacks and deletions happen within the run."""
FEW_COORDINATORS = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
}
"""With few partitions of coordinators, each of them moves."""


class _Copy(NamedTuple):
    source: int
    destination: int
    what: str


def source_killed_while_moving(arena: Arena) -> None:
    for _ in range(ROUNDS):
        _kill(arena, _find_copy(arena).source)


def destination_killed_while_moving(arena: Arena) -> None:
    for _ in range(ROUNDS):
        _kill(arena, _find_copy(arena).destination)


def controller_killed_while_moving(arena: Arena) -> None:
    for _ in range(ROUNDS):
        _find_copy(arena)
        _kill(arena, arena.controller())


def _kill(arena: Arena, number: int) -> None:
    arena.kill(number)
    arena.wait(arena.rng.uniform(0, AWAY_SECONDS_MAX))
    arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)
    arena.start(number)
    arena.wait(1.0)


def nodes_killed_while_transactions_move(arena: Arena) -> None:
    """Transactions, their coordinators' logs and the offsets of their groups move."""
    transactions = arena.transactions
    assert transactions is not None, "the scenario has transactions"
    for victim in ("source", "destination", "controller"):
        copy = _find_copy(arena)
        nodes = {"source": copy.source, "destination": copy.destination}
        number = nodes[victim] if victim in nodes else arena.controller()
        arena.kill(number)
        transactions.progress()
        arena.start(number)
        arena.wait(1.0)


def source_and_destination_cut_off(arena: Arena) -> None:
    for _ in range(ROUNDS - 1):
        copy = _find_copy(arena)
        arena.note(f"cut off nodes {copy.source} and {copy.destination} from each other")
        arena.cluster.network.separate(copy.source, copy.destination)
        arena.wait(CUT_SECONDS)
        arena.heal(copy.source, copy.destination)
        arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)


def destination_disk_full(arena: Arena) -> None:
    """Moves to a full disk are rolled back."""
    copy = _find_copy(arena)
    full = copy.destination
    arena.note(f"fill the disk of node {full}")
    ballast = disks.fill(arena.cluster.nodes[full].place.data.parent)
    arena.wait(FULL_SECONDS)  # more moves to the full disk begin meanwhile
    _mover(arena).nodes = arena.others(full)
    arena.expect(
        lambda: not any(full in move.adding for move in _moves(arena) or ()),
        seconds=ROLLBACK_SECONDS_MAX,
        what=f"no partition moves to node {full}",
    )
    arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)
    arena.note(f"make room on the disk of node {full}")
    ballast.unlink()
    _mover(arena).nodes = arena.ids
    arena.wait(0.5)
    if arena.cluster.died():
        arena.start(full)


def topics_changed_while_moving(arena: Arena) -> None:
    """A topic is deleted and created again, and topics get partitions, while they move."""
    admin = AdminClient({**confluent_address(arena.cluster.bootstrap), **QUICK})
    topic, other = arena.workload.topic, f"{arena.workload.topic}-other"
    mover = _mover(arena)
    mover.topics.append(other)
    for number in range(ROUNDS):
        arena.note(f"create {other}")
        create_topic(arena.cluster.bootstrap, other, Load(partitions=2))
        _find_copy(arena, topic=other)
        for name, count in ((other, 4), (topic, arena.workload.load.partitions + number + 1)):
            arena.note(f"add partitions to {name}")
            admin.create_partitions([NewPartitions(name, count)])[name].result(10)
        _find_copy(arena, topic=other)
        arena.note(f"delete {other}")
        admin.delete_topics([other])[other].result(10)
        _expect_deleted(arena, admin, other)
    arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)


def _expect_deleted(arena: Arena, admin: AdminClient, topic: str) -> None:
    def is_deleted() -> bool:
        try:
            return topic not in admin.list_topics(timeout=3).topics
        except confluent_kafka.KafkaException:
            return False

    arena.expect(is_deleted, seconds=FIND_SECONDS_MAX, what=f"{topic} is deleted")


def restarts_while_moving(arena: Arena) -> None:
    for number in arena.ids:
        _find_copy(arena)
        arena.stop(number)
        arena.start(number)
        arena.expect(
            lambda: all(row == tuple(arena.ids) for row in arena.probe.brokers().values()),
            seconds=FIND_SECONDS_MAX,
            what="all nodes see each other",
        )
        arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)


def voter_decommissioned(arena: Arena) -> None:
    """A voter is emptied and loses its vote, and gets both back."""
    leaving = arena.rng.choice(arena.quorum().voters)
    _mover(arena).nodes = arena.others(leaving)
    # The command refuses partitions of other plans, and other requests change targets meanwhile, so
    # it may have to run again.
    arena.expect(
        lambda: _run(arena, "cluster", "decommission", str(leaving), "--yes"),
        seconds=COMMAND_SECONDS_MAX,
        what=f"node {leaving} is decommissioned",
    )
    arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)
    arena.expect(
        lambda: not _is_used(arena, leaving),
        seconds=FIND_SECONDS_MAX,
        what=f"node {leaving} holds no replicas and has no vote",
    )
    arena.kill(leaving)
    arena.wait(AWAY_SECONDS_MAX)
    arena.progress_everywhere(seconds=PROGRESS_SECONDS_MAX)
    arena.start(leaving)
    arena.expect(
        lambda: _run(arena, "cluster", "recommission", str(leaving)),
        seconds=COMMAND_SECONDS_MAX,
        what=f"node {leaving} is recommissioned",
    )
    _mover(arena).nodes = arena.ids
    make_voter_again(arena, leaving)


def _is_used(arena: Arena, number: int) -> bool:
    views = [arena.probe.topic(topic) for topic in _mover(arena).topics]
    rows = [row for view in views if view is not None for row in view.partitions.values()]
    return number in arena.quorum().voters or any(number in row.replicas for row in rows)


def _run(arena: Arena, *words: str) -> bool:
    """Run a command as an operator does."""
    arena.note(f"riverrun {' '.join(words)}")
    place = ["--bootstrap", arena.cluster.bootstrap]
    done = subprocess.run(
        [sys.executable, "-m", "riverrun.cli", *words, *place],
        env={**os.environ, **arena.cluster.login_environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS_MAX,
    )
    last = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1:]
    arena.note(f"exit code {done.returncode}: {''.join(last)}")
    return done.returncode == 0


def _mover(arena: Arena) -> MovingAdministrator:
    assert arena.mover is not None, "the scenario has moves"
    return arena.mover


def _moves(arena: Arena) -> list[ListedMove] | None:
    for number in arena.cluster.running:
        try:
            return ongoing_moves(arena.probe, number)
        except NO_RESPONSE:
            continue
    return None


def _find_copy(arena: Arena, *, topic: str | None = None) -> _Copy:
    """A move under way, between nodes that run."""
    found: list[_Copy] = []
    running = arena.cluster.running

    def look() -> bool:
        for move in _moves(arena) or ():
            view = arena.probe.topic(move.topic)
            if view is None or topic not in (None, move.topic):
                continue
            row = view.partitions.get(move.partition)
            if row is None or row.leader not in running or not move.adding:
                continue
            if move.adding[0] in running and move.adding[0] != row.leader:
                what = f"{move.topic}-{move.partition}"
                found.append(_Copy(row.leader, move.adding[0], what))
        return bool(found)

    arena.expect(look, seconds=FIND_SECONDS_MAX, what=f"a partition of {topic or 'a topic'} moves")
    copy = arena.rng.choice(found)
    arena.note(f"{copy.what} moves from node {copy.source} to node {copy.destination}")
    return copy


_scenario = partial(Scenario, family=FAMILY, has_moves=True, nodes_min=NODES, settings=SETTINGS)
SCENARIOS = (
    _scenario(
        about="Leaders that new replicas copy from are killed.",
        happen=source_killed_while_moving,
    ),
    _scenario(
        about="Nodes that get new replicas are killed.",
        happen=destination_killed_while_moving,
    ),
    _scenario(
        about="The active controller is killed while partitions move.",
        happen=controller_killed_while_moving,
    ),
    _scenario(
        about="Nodes are killed while transactions run and all their partitions move.",
        happen=nodes_killed_while_transactions_move,
        has_transactions=True,
        settings={**SETTINGS, **FEW_COORDINATORS},
    ),
    _scenario(
        about="The leader and the new replica are cut off from each other.",
        happen=source_and_destination_cut_off,
    ),
    _scenario(
        about="The disk of a node that gets new replicas is full.",
        happen=destination_disk_full,
        small_disk_bytes=SMALL_DISK_BYTES,
    ),
    _scenario(
        about="Topics are deleted, created again and extended while they move.",
        happen=topics_changed_while_moving,
    ),
    _scenario(
        about="Every node is restarted in turn while partitions move.",
        happen=restarts_while_moving,
        may_fail_sends=False,
    ),
    _scenario(
        about="A voter is decommissioned and recommissioned.",
        happen=voter_decommissioned,
    ),
)
