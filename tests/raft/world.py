"""Several cores, their logs and a network between them, in virtual time.

Effects are executed according to the contract of ``riverrun.raft.effects``; ``Invariants`` are
checked after each of them. Faults are calls: ``cut``, ``crash``, ``restart``, ``pause``. All
randomness comes from the given source.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from riverrun.model.ids import NodeId, Offset
from riverrun.raft import effects as do
from riverrun.raft import events
from riverrun.raft.core import Raft
from riverrun.raft.messages import FetchResponse, FetchSnapshotResponse, Request, Response
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.types import Endpoint, QuorumState, SnapshotId, Voter, VoterSet
from tests.raft.invariants import Invariants
from tests.raft.logs import Entry, MemoryLog, voter

Plant = Callable[[Raft], None]


class Chance:
    """Randomness from a seed. Without one, returns the midpoint of each range, so that transcripts
    do not change."""

    def __init__(self, chance: random.Random | None) -> None:
        self._chance = chance

    def uuid(self) -> UUID:
        raise AssertionError("the core does not request uuids")

    def below(self, limit: int) -> int:
        return 0 if self._chance is None else self._chance.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return (low + high) / 2 if self._chance is None else self._chance.uniform(low, high)


class Node:
    """One process with its disk. ``raft`` is None while it is down."""

    def __init__(self, me: Voter, log: MemoryLog) -> None:
        self.me = me
        self.log = log
        self.raft: Raft | None = None
        self.state: QuorumState | None = None
        self.incarnation = 0
        self.applied: list[Entry] = []
        """The state machine: everything committed, including snapshots."""
        self.parts: dict[SnapshotId, bytearray] = {}
        self.paused: list[Callable[[], None]] | None = None
        self.tick_at = float("inf")

    @property
    def id(self) -> NodeId:
        return self.me.id

    @property
    def is_leader(self) -> bool:
        return self.raft is not None and self.raft.is_leader


class World:
    def __init__(
        self,
        voting: VoterSet,
        *,
        chance: random.Random | None = None,
        settings: QuorumSettings | None = None,
        plant: Plant | None = None,
        acks_early: bool = False,
        listener: Callable[[float, NodeId, do.Effect], None] | None = None,
    ) -> None:
        self.chance = chance
        self.settings = settings or QuorumSettings()
        self.now = 0.0
        self.nodes: dict[NodeId, Node] = {}
        self.invariants = Invariants(self)
        self.cuts: dict[tuple[NodeId, NodeId], None] = {}
        self.loss = 0.0
        self.read_count = 10
        """Records per fetch response."""
        self.delay = (0.001, 0.001)
        self.flush_delay = (0.002, 0.002)
        self.answers: list[tuple[object, Response]] = []
        """Responses to outside requests, by token."""
        self._voting = voting
        self._plant = plant
        self._acks_early = acks_early
        self.listener = listener
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._incarnations = 0
        for one in voting:
            self.add(one)

    def add(self, me: Voter, *, first: VoterSet | None = None, joins: bool = False) -> Node:
        log = MemoryLog(self._voting if first is None else first, acks_early=self._acks_early)
        node = self.nodes[me.id] = Node(me, log)
        self.start(node, joins=joins)
        return node

    def start(self, node: Node, *, joins: bool = False) -> None:
        assert node.raft is None, f"{node.id} is already running"
        self._incarnations += 1
        node.incarnation = self._incarnations
        seed = None if self.chance is None else random.Random(self.chance.random())
        node.raft = Raft(
            me=node.me,
            log=node.log,
            state=node.state,
            settings=self.settings,
            randomness=Chance(seed),
            bootstrap=[(f"n{one.id}", 9093) for one in self._voting],
            joins=joins,
            high_watermark=node.log.start_offset,
        )
        node.applied = self.invariants.state_before(node.log.start_offset)
        node.parts = {}
        if self._plant is not None:
            self._plant(node.raft)
        self.step(node, events.Tick())

    def crash(self, node: Node) -> None:
        """Power loss: unflushed data is gone, connections break."""
        node.raft = None
        node.paused = None
        node.tick_at = float("inf")
        node.log.crash(self.chance or random.Random(0))

    def pause(self, node: Node) -> None:
        node.paused = []

    def resume(self, node: Node) -> None:
        waiting, node.paused = node.paused or [], None
        for action in waiting:
            action()
        self._tick(node)

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_leader]

    @property
    def leader(self) -> Node | None:
        """The leader with the greatest epoch."""
        return max(self.leaders(), key=lambda node: self.core(node).epoch, default=None)

    def core(self, node: Node) -> Raft:
        assert node.raft is not None, f"{node.id} is down"
        return node.raft

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, action))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Advance time; returns whether the condition became true."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            if until is not None and until():
                return True
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end
        return until is None or until()

    def _span(self, span: tuple[float, float]) -> float:
        return span[0] if self.chance is None else self.chance.uniform(*span)

    def step(self, node: Node, event: events.Event) -> None:
        if node.paused is not None:
            incarnation = node.incarnation
            node.paused.append(lambda: self._step_if(node, incarnation, event))
            return
        if node.raft is None:
            return
        pending = [event]
        while pending:
            effects = node.raft.step(self.now, pending.pop(0))
            follow_up: list[events.Event] = []
            for effect in effects:
                if self.listener is not None:
                    self.listener(self.now, node.id, effect)
                done = self._execute(node, effect)
                if done is not None:
                    follow_up.append(done)
                self.invariants.check(node, effect)
            pending = follow_up + pending
        assert node.raft.next_deadline() > self.now, (
            f"the next deadline of {node.id} is not in the future: {node.raft.role}"
        )
        self._arm(node)

    def _step_if(self, node: Node, incarnation: int, event: events.Event) -> None:
        if node.incarnation == incarnation:
            self.step(node, event)

    def _arm(self, node: Node) -> None:
        due = self.core(node).next_deadline()
        if due < node.tick_at or node.tick_at <= self.now:
            node.tick_at = due
            if due < float("inf"):
                incarnation = node.incarnation
                self.later(due - self.now, lambda: self._tick_if(node, incarnation, due))

    def _tick_if(self, node: Node, incarnation: int, due: float) -> None:
        if node.incarnation == incarnation and node.raft is not None and node.tick_at == due:
            self._tick(node)

    def _tick(self, node: Node) -> None:
        if node.raft is None:
            return
        node.tick_at = float("inf")
        if node.raft.next_deadline() <= self.now:
            self.step(node, events.Tick())
        else:
            self._arm(node)

    def _execute(self, node: Node, effect: do.Effect) -> events.Event | None:
        match effect:
            case do.Persist(state=state):
                node.state = state
            case do.Send(endpoint=endpoint, request=request, peer=peer):
                self._send(node, peer, endpoint, request)
            case do.Respond():
                self._respond(node, effect)
            case do.AppendControl(epoch=epoch, records=records):
                node.log.append_control(epoch, records)
                return events.LogChanged()
            case do.Append(data=data):
                node.log.append_fetched(data)
                return events.LogChanged()
            case do.Truncate(offset=offset):
                node.log.truncate(offset)
                return events.LogChanged()
            case do.Flush():
                self._flush(node)
            case do.WriteSnapshot(snapshot=snapshot, position=position, data=data):
                part = node.parts.setdefault(snapshot, bytearray())
                if position == 0:
                    part.clear()
                assert len(part) == position, f"gap before {position}"
                part += data
            case do.InstallSnapshot(snapshot=snapshot):
                node.applied = node.log.install(snapshot, bytes(node.parts.pop(snapshot)))
                self.invariants.installed(node, snapshot)
                return events.SnapshotInstalled(snapshot)
            case do.Committed(high_watermark=high_watermark):
                for position in range(len(node.applied), high_watermark):
                    node.applied.append(node.log.entry(Offset(position)))
            case do.BecameLeader() | do.LostLeadership() | do.Follows():
                pass
        return None

    def _flush(self, node: Node) -> None:
        incarnation = node.incarnation
        end = int(node.log.end_offset)
        last = node.log.last_epoch

        def done() -> None:
            if node.incarnation != incarnation or node.raft is None:
                return
            # Only entries that existed when the flush began and still exist.
            log = node.log
            if log.end_offset == end and log.last_epoch == last:
                log.flush()
            elif end <= log.end_offset and log.durable < end:
                place = end - log.start.end - 1
                if place >= 0 and log.entries[place][0] == last:
                    log.durable = end
            self.step(node, events.Flushed())

        self.later(self._span(self.flush_delay), done)

    def _respond(self, node: Node, effect: do.Respond) -> None:
        response = effect.response
        match effect.read:
            case do.ReadLog(offset=offset):
                assert isinstance(response, FetchResponse)
                response = replace(response, data=node.log.read(offset, self.read_count))
            case do.ReadSnapshot(snapshot=snapshot, position=position):
                assert isinstance(response, FetchSnapshotResponse)
                data = node.log.snapshots[snapshot][position : position + 200]
                response = replace(response, data=data)
            case None:
                pass
        if callable(effect.token):
            effect.token(response)
        else:
            self.answers.append((effect.token, response))

    def _send(self, node: Node, peer: NodeId, endpoint: Endpoint, request: Request) -> None:
        """Like TCP: the connection is refused if the process is down. A network partition drops
        everything."""
        target = self.nodes.get(NodeId(int(endpoint[0][1:])))
        incarnation = node.incarnation
        timeout = self.settings.request_timeout_ms / 1000
        is_done = False

        def finish(event: events.Event) -> None:
            nonlocal is_done
            if not is_done and node.incarnation == incarnation and node.raft is not None:
                is_done = True
                self.step(node, event)

        def deliver() -> None:
            if target is None or target.raft is None:
                self.travel(None if target is None else target.id, node.id, lambda: finish(refused))
                return
            asked = target.incarnation

            def answer(response: Response) -> None:
                self.invariants.answered(target, request, response)
                self.travel(target.id, node.id, lambda: finish(answered(response)))

            def watch() -> None:
                # The connection breaks with the responding process.
                if not is_done and (target.incarnation != asked or target.raft is None):
                    self.travel(target.id, node.id, lambda: finish(refused))
                elif not is_done and self.now - sent < timeout:
                    self.later(0.02, watch)

            self.step(target, events.Received(request, answer))
            watch()

        def answered(response: Response) -> events.Event:
            return events.Answered(peer, request, response)

        refused = events.Failed(peer, request, is_refused=True)
        sent = self.now
        self.later(timeout, lambda: finish(events.Failed(peer, request)))
        self.travel(node.id, None if target is None else target.id, deliver)

    def travel(
        self, source: NodeId | None, target: NodeId | None, action: Callable[[], None]
    ) -> None:
        is_lost = self.chance is not None and self.chance.random() < self.loss

        def arrive() -> None:
            is_cut = source is not None and target is not None and (source, target) in self.cuts
            if not is_cut and not is_lost:
                action()

        self.later(self._span(self.delay), arrive)

    def cut(self, source: int, target: int) -> None:
        self.cuts[NodeId(source), NodeId(target)] = None

    def isolate(self, node: int) -> None:
        for other in self.nodes:
            if other != node:
                self.cut(node, other)
                self.cut(other, node)

    def heal(self) -> None:
        self.cuts.clear()

    def propose(self, node: Node, value: object) -> None:
        raft = self.core(node)
        assert raft.is_leader, f"{node.id} does not lead"
        node.log.append((int(raft.epoch), ("data", value)))
        self.invariants.appended(node, int(node.log.end_offset) - 1)
        self.step(node, events.LogChanged())

    def snapshot(self, node: Node, end: int | None = None) -> SnapshotId:
        """Write a snapshot of the committed records and drop the log before it."""
        end = len(node.applied) if end is None else end
        made = node.log.snapshot(end, node.applied[:end])
        node.log.drop_before(made)
        return made

    def ask(self, node: Node, request: Request, token: object = "outside") -> None:
        self.step(node, events.Received(request, token))

    def offsets(self) -> dict[NodeId, Offset]:
        return {node.id: node.log.end_offset for node in self.nodes.values()}


def voters_only(*nodes: int) -> World:
    """A world without faults whose nodes are all voters."""
    return World(VoterSet(tuple(voter(node) for node in nodes)))
