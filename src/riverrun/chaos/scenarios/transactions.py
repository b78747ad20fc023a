"""Faults under transactions: nothing is torn, lost or doubled, and none stays open.

Clients of confluent-kafka, aiokafka and our own library write transactions over several partitions.
Chains of consumer groups, also of Apache Kafka's Java client, process them exactly once.
"""

from __future__ import annotations

from functools import partial

from riverrun.chaos.scenarios.arena import Arena, PromiseBroken
from riverrun.chaos.scenarios.scenario import Scenario
from riverrun.chaos.transactions.load import TransactionLoad
from riverrun.chaos.transactions.zombie import COMMITTED, ZombieProcess
from riverrun.model.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from riverrun.testing.transaction_history import TransactionWrite

FAMILY = "transactions"
ROUNDS = 3
PAUSE_SECONDS = 3.5
"""Longer than a broker's session."""
TOPICS_OF_COORDINATORS = (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
SETTINGS = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}


def transaction_coordinator_killed(arena: Arena) -> None:
    for _ in range(ROUNDS):
        node = arena.transaction_coordinator()
        arena.kill(node)
        _load(arena).progress()
        arena.start(node)
        arena.wait(0.5)


def transaction_leader_killed(arena: Arena) -> None:
    for number in range(ROUNDS):
        load = _load(arena)
        leader = arena.leader_of(load.inputs if number % 2 else load.outputs, 0)
        arena.kill(leader)
        load.progress()
        arena.start(leader)
        arena.wait(0.5)


def transactions_all_killed(arena: Arena) -> None:
    arena.kill(*arena.ids)
    arena.wait(0.5)
    arena.start(*arena.ids)
    _load(arena).progress()


def transaction_coordinator_paused(arena: Arena) -> None:
    node = arena.transaction_coordinator()
    arena.pause(node)
    arena.expect(
        lambda: arena.transaction_coordinator() != node,
        seconds=10,
        what=f"a coordinator other than node {node}",
    )
    _load(arena).progress()
    arena.wait(PAUSE_SECONDS - 2)
    arena.resume(node)
    _load(arena).progress()


def transactions_rolling_restart(arena: Arena) -> None:
    for number in arena.ids:
        arena.stop(number)
        arena.start(number)
        arena.all_in_sync()
        _load(arena).progress()


def zombie_producer(arena: Arena) -> None:
    """A process is paused in a transaction and replaced. When it goes on, nothing of it may become
    visible, and its commit must be refused."""
    load = _load(arena)
    feed = load.feed
    for number in range(ROUNDS):
        name = f"{load.inputs}-zombie-{number}"
        record = feed.history.begin(name, feed.now())
        values = [f"{record.name}/{n}" for n in range(3)]
        record.writes += [TransactionWrite((load.inputs, 0), value) for value in values]
        zombie = ZombieProcess(feed.bootstrap, name, load.inputs, values)
        try:
            if not zombie.wait_written():
                raise PromiseBroken(f"{name} could not write its transaction")
            zombie.pause()
            successor = ZombieProcess(feed.bootstrap, name, load.inputs, [])
            successor.wait_written()
            if number == 1:
                node = arena.transaction_coordinator()
                arena.kill(node)
                arena.start(node)
            zombie.resume()
            record.requests_commit(feed.now())
            outcome = zombie.commit()
            arena.note(f"the zombie's commit: {outcome}")
            if outcome == COMMITTED:
                record.is_committed(feed.now())
            successor.commit()
        finally:
            zombie.kill()
    load.progress()


def transaction_partitions_moved(arena: Arena) -> None:
    """The logs of coordinators move to other leaders and back while transactions run."""
    for number in range(ROUNDS):
        for topic in TOPICS_OF_COORDINATORS:
            arena.rotate_replicas(topic, by=number + 1, count=2)
        _load(arena).progress()
        for topic in TOPICS_OF_COORDINATORS:
            arena.rotate_replicas(topic, by=number + 1, count=3)
        _load(arena).progress()
    node = arena.transaction_coordinator()
    arena.kill(node)
    _load(arena).progress()
    arena.start(node)


def _load(arena: Arena) -> TransactionLoad:
    assert arena.transactions is not None, "the scenario has transactions"
    return arena.transactions


_scenario = partial(Scenario, family=FAMILY, has_transactions=True, settings=SETTINGS)
SCENARIOS = (
    _scenario(
        about="The coordinator of transactions is killed, three times.",
        happen=transaction_coordinator_killed,
    ),
    _scenario(
        about="Leaders of partitions with open transactions are killed.",
        happen=transaction_leader_killed,
    ),
    _scenario(
        about="All nodes are killed at once, with open transactions.",
        happen=transactions_all_killed,
    ),
    _scenario(
        about="The coordinator is paused until another one has taken over.",
        happen=transaction_coordinator_paused,
    ),
    _scenario(
        about="Every node is restarted in turn, with open transactions.",
        happen=transactions_rolling_restart,
    ),
    _scenario(
        about="A producer is paused in a transaction, replaced, and goes on.",
        happen=zombie_producer,
    ),
    _scenario(
        about="The partitions of coordinators move while transactions run.",
        happen=transaction_partitions_moved,
    ),
)
