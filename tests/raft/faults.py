"""A seed determines a whole schedule: the voters, the faults, the joins and leaves."""

from __future__ import annotations

import random
from collections.abc import Callable

from riverrun.model.ids import NodeId
from riverrun.raft import events
from riverrun.raft.messages import AddVoterRequest, RemoveVoterRequest
from tests.raft.logs import voter, voters
from tests.raft.world import Node, Plant, World


class SeededRun:
    """Faults and load for some virtual seconds, then a quiet time in which all members must
    agree."""

    def __init__(self, seed: int, *, plant: Plant | None = None, acks_early: bool = False) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        size = chance.choice((3, 3, 3, 5, 5, 7, 4))
        self.world = World(
            voters(*range(1, size + 1)), chance=chance, plant=plant, acks_early=acks_early
        )
        world = self.world
        world.delay = chance.choice(((0.001, 0.003), (0.001, 0.02), (0.001, 0.2)))
        world.flush_delay = chance.choice(((0.001, 0.003), (0.001, 0.05), (0.01, 0.6)))
        world.loss = chance.choice((0.0, 0.0, 0.02, 0.1))
        self.proposed = 0
        self.next_node = size + 1
        self._changes = chance.random() < 0.5

    def run(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.run(self.chance.choice((0.003, 0.02, 0.1, 0.4)))
            self._act()
        self._quiet()
        self.world.invariants.check_converged()

    def _act(self) -> None:
        acts: list[Callable[[], None]] = [self._propose] * 10
        acts += [self._crash, self._crash, self._restart, self._restart, self._cut, self._cut]
        acts += [self._heal, self._heal, self._pause, self._resume, self._snapshot, self._resign]
        acts += [self._kill_leader, self._flap]
        if self._changes:
            acts += [self._add_voter, self._add_voter, self._remove_voter, self._remove_voter]
            acts += [self._replace_disk, self._move]
        self.chance.choice(acts)()

    def _up(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.raft is not None]

    def _propose(self) -> None:
        for node in self.world.leaders():
            if node.paused is None:
                self.proposed += 1
                self.world.propose(node, self.proposed)

    def _crash(self) -> None:
        if up := self._up():
            self.world.crash(self.chance.choice(up))

    def _kill_leader(self) -> None:
        leader = self.world.leader
        if leader is not None:
            self.world.crash(leader)

    def _flap(self) -> None:
        """All nodes at once, as in a power cut."""
        for node in self._up():
            if self.chance.random() < 0.7:
                self.world.crash(node)
        for node in self.world.nodes.values():
            if node.raft is None:
                self.world.start(node, joins=self.chance.random() < 0.3)

    def _restart(self) -> None:
        down = [node for node in self.world.nodes.values() if node.raft is None]
        if down:
            self.world.start(self.chance.choice(down))

    def _cut(self) -> None:
        nodes = list(self.world.nodes)
        if self.chance.random() < 0.5:
            self.world.isolate(self.chance.choice(nodes))
        else:
            self.world.cut(self.chance.choice(nodes), self.chance.choice(nodes))

    def _heal(self) -> None:
        self.world.heal()

    def _pause(self) -> None:
        up = [node for node in self._up() if node.paused is None]
        if up:
            self.world.pause(self.chance.choice(up))

    def _resume(self) -> None:
        for node in self.world.nodes.values():
            if node.paused is not None:
                self.world.resume(node)

    def _snapshot(self) -> None:
        up = [node for node in self._up() if len(node.applied) > node.log.start_offset]
        if up:
            node = self.chance.choice(up)
            low = int(node.log.start_offset) + 1
            self.world.snapshot(node, self.chance.randint(low, len(node.applied)))

    def _resign(self) -> None:
        for node in self.world.leaders():
            self.world.step(node, events.Resign())

    def _add_voter(self) -> None:
        if len(self.world.nodes) < 8 and self.chance.random() < 0.5:
            self.world.add(voter(self.next_node), first=voters())
            self.next_node += 1
        node = self.chance.choice(list(self.world.nodes.values()))
        request = AddVoterRequest(voter=node.me, timeout_ms=1000)
        self._ask_leaders(request)

    def _remove_voter(self) -> None:
        node = self.chance.choice(list(self.world.nodes.values()))
        self._ask_leaders(RemoveVoterRequest(voter=node.me.key))

    def _ask_leaders(self, request: AddVoterRequest | RemoveVoterRequest) -> None:
        for leader in self.world.leaders():
            self.world.ask(leader, request)

    def _replace_disk(self) -> None:
        """A node loses its disk and returns with another directory id, to be added again.

        It is not a voter in any member's log: a change may be rolled back, and the data that a
        majority loses is lost.
        """
        logs = [node.log for node in self.world.nodes.values()]
        outside = [
            node
            for node in self._up()
            if not any(node.me.key in entry.voters for log in logs for entry in log.history.all)
        ]
        if outside:
            node = self.chance.choice(outside)
            self.world.crash(node)
            self._wipe(node)

    def _wipe(self, node: Node) -> None:
        directory = self.chance.randrange(10**6, 10**9)
        del self.world.nodes[node.id]
        self.world.invariants.forget(node.id)
        self.world.add(voter(node.id, directory), first=voters())

    def _move(self) -> None:
        """A node returns at another port; the voters must be updated."""
        if up := self._up():
            node = self.chance.choice(up)
            self.world.crash(node)
            assert node.me.directory_id is not None
            node.me = voter(node.id, node.me.directory_id.int, self.chance.randrange(9000, 9999))
            self.world.start(node)

    def _quiet(self) -> None:
        """End all faults."""
        world = self.world
        world.heal()
        world.loss = 0.0
        world.delay = (0.001, 0.003)
        world.flush_delay = (0.001, 0.003)
        self._resume()
        for node in world.nodes.values():
            if node.raft is None:
                world.start(node)
        world.run(12.0)
        if world.leader is not None:
            self._propose()
        world.run(2.0)


def down(world: World, *nodes: int) -> None:
    for node in nodes:
        world.crash(world.nodes[NodeId(node)])
