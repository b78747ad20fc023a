"""Invariants of a group under any order of events, as a hypothesis state machine.

Clients behave like consumers: they join, the leader assigns, they send heartbeats, and they react
to errors as the protocol demands. The coordinator may crash and lose uncommitted records, the log
may be slow or refuse appends, connections may break, and processes may be killed.
"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.records import StoredGroup
from riverrun.coordinator.shard_kind import Waiter
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from tests.coordinator.shard_driver import GROUP, Actor, ShardDriver, rebuilt

PARTITIONS = 4
PLACES = ("anna", "boris", "clara", "dora")
STATIC = ("boris", "dora")
places = st.sampled_from(PLACES)
START_ANEW = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class Consumer(Actor):
    """A client that follows the protocol, one step at a time."""

    def __init__(self, driver: ShardDriver, name: str) -> None:
        instance = f"{name}-instance" if name in STATIC else None
        super().__init__(driver, name, instance=instance, version=9)
        self.owned: bytes | None = None
        self.is_fenced = False

    def connection_lost(self) -> None:
        """Pending requests get no response."""
        self.joining = self.syncing = None

    def step(self) -> None:
        if self.is_fenced:
            return
        if self.joining is not None:
            self._step_joining(self.joining)
        elif self.syncing is not None:
            self._step_syncing(self.syncing)
        elif self.owned is None:
            self.rejoin()
        else:
            self._met(self.heartbeat())

    def rejoin(self) -> None:
        self.owned = None
        self.syncing = None
        self.send_join()

    def _step_joining(self, waiter: Waiter) -> None:
        response = self.driver.responses.get(waiter)
        if response is None:
            return
        self.joining = None
        code = response if isinstance(response, ErrorCode) else response.error_code
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            self.send_join()
        elif code is ErrorCode.NONE:
            self.id = response.member_id
            self.generation = response.generation_id
            self.send_sync(assignment(response) if needs_assignment(response) else {})
        else:
            self._met(code)

    def _step_syncing(self, waiter: Waiter) -> None:
        response = self.driver.responses.get(waiter)
        if response is None:
            return
        self.syncing = None
        code = response if isinstance(response, ErrorCode) else response.error_code
        if code is ErrorCode.NONE:
            self.owned = response.assignment
        else:
            self._met(code)

    def _met(self, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            return
        self.owned = None
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.is_fenced = True
        elif code in START_ANEW:
            self.id = ""


def needs_assignment(joined: JoinGroupResponse) -> bool:
    return joined.leader == joined.member_id and not joined.skip_assignment


def assignment(joined: JoinGroupResponse) -> dict[str, bytes]:
    """Round-robin assignment of partitions."""
    ids = [one.member_id for one in joined.members]
    return {
        member_id: bytes(p for p in range(PARTITIONS) if p % len(ids) == place)
        for place, member_id in enumerate(ids)
    }


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        delay=st.sampled_from(["0", "3000"]), first=st.lists(places, unique=True, max_size=4)
    )
    def begin(self, delay: str, first: list[str]) -> None:
        self.driver = ShardDriver(group_initial_rebalance_delay_ms=delay)
        self.consumers: dict[str, Consumer] = {}
        self.zombies: list[Consumer] = []
        self.owners: dict[tuple[int, int], str] = {}
        self.acknowledged = dict.fromkeys(range(PARTITIONS), -1)
        self.sent: dict[Waiter, tuple[int, int]] = {}
        self.next_offset = 0
        for place in first:
            self.start(place, False)
        self.all_step(6, 0.5)

    # Events

    def all_consumers(self) -> list[Consumer]:
        return [*self.consumers.values(), *self.zombies]

    @rule(place=places, is_zombie=st.booleans())
    def start(self, place: str, is_zombie: bool) -> None:
        """Start a process. A previous one in its place was killed or continues as a zombie."""
        if place in self.consumers:
            if is_zombie and len(self.zombies) < 2:
                self.zombies.append(self.consumers[place])
            else:
                self.break_connection_of(self.consumers[place])
        self.consumers[place] = Consumer(self.driver, place)
        self.consumers[place].step()

    @rule(place=places)
    def step(self, place: str) -> None:
        if place in self.consumers:
            self.consumers[place].step()

    @rule(rounds=st.integers(1, 6), seconds=st.sampled_from([0.0, 0.5]))
    def all_step(self, rounds: int, seconds: float) -> None:
        for _ in range(rounds):
            for consumer in self.all_consumers():
                consumer.step()
            self.driver.wait(seconds)

    @rule(place=places)
    def kill(self, place: str) -> None:
        consumer = self.consumers.pop(place, None)
        if consumer is not None:
            self.break_connection_of(consumer)

    @rule(place=places)
    def leave(self, place: str) -> None:
        consumer = self.consumers.get(place)
        if consumer is None or not consumer.id or self.driver.is_held:
            return
        del self.consumers[place]
        if GROUP in self.driver.shard.groups:
            consumer.leave()

    @rule(place=places)
    def break_connection(self, place: str) -> None:
        consumer = self.consumers.get(place)
        if consumer is not None:
            self.break_connection_of(consumer)

    def break_connection_of(self, consumer: Consumer) -> None:
        for waiter in (consumer.joining, consumer.syncing):
            if waiter is not None and waiter not in self.driver.responses:
                turn = self.driver.turn()
                self.driver.shard.connection_lost(turn, GROUP, waiter)
                self.driver.finish(turn)
        consumer.connection_lost()

    @rule(place=places)
    def commit(self, place: str) -> None:
        consumer = self.consumers.get(place)
        if consumer is None or not consumer.owned:
            return
        partition = consumer.owned[0]
        self.next_offset += 1
        before = set(self.driver.responses)
        code = consumer.commit(self.next_offset, partition=partition)
        if code in (ErrorCode.NONE, None):
            assert consumer.generation == self.driver.group.generation, "a commit of the past"
        if code is ErrorCode.NONE:
            self.acknowledged[partition] = self.next_offset
        elif code is None:
            waiter = max(self.driver._waiters, max(before, default=0))
            self.sent[Waiter(waiter)] = (partition, self.next_offset)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 11.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.driver.wait(seconds)

    @rule()
    def hold_log(self) -> None:
        self.driver.hold()

    @precondition(lambda self: self.driver.is_held)
    @rule()
    def commit_log(self) -> None:
        self.driver.commit_log()

    @precondition(lambda self: self.driver.is_held)
    @rule()
    def refuse_log(self) -> None:
        self.driver.refuse_log()

    @rule()
    def crash(self) -> None:
        """A new coordinator takes over with the log alone."""
        self.driver.restart()
        for consumer in self.all_consumers():
            consumer.connection_lost()

    # Invariants

    @invariant()
    def partition_has_one_owner_per_generation(self) -> None:
        for consumer in self.all_consumers():
            if consumer.owned is None:
                continue
            owner = consumer.instance or consumer.id
            for partition in consumer.owned:
                key = (consumer.generation, partition)
                assert self.owners.setdefault(key, owner) == owner, key

    @invariant()
    def acknowledged_offsets_never_go_back(self) -> None:
        for waiter, (partition, offset) in list(self.sent.items()):
            response = self.driver.responses.get(waiter)
            if response is not None:
                del self.sent[waiter]
                if not isinstance(response, ErrorCode):
                    self.acknowledged[partition] = max(self.acknowledged[partition], offset)
        for partition, offset in self.acknowledged.items():
            assert self.driver.committed(partition) >= offset

    @invariant()
    def durable_state_equals_the_replayed_log(self) -> None:
        replayed = rebuilt(self.driver.settings, self.driver.randomness, self.driver.log)
        assert replayed.stored == self.driver.shard.stored
        assert replayed.offsets.by_group == self.driver.shard.offsets.by_group
        assert replayed.offsets.count == self.driver.shard.offsets.count

    @invariant()
    def stable_group_equals_the_stored_group(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if group is None or group.state is not GroupState.STABLE or self.driver._in_flight:
            return
        stored = self.driver.shard.stored[GROUP]
        assert timeless(group.stored(group.assignments())) == timeless(stored)
        assert timeless(ClassicGroup.from_stored(GROUP, stored).stored(parts(stored))) == (
            timeless(stored)
        )

    @invariant()
    def every_waiter_is_held_by_the_shard(self) -> None:
        held = {waiter for turn in self.driver._in_flight for waiter, _ in turn.replies}
        group = self.driver.shard.groups.get(GROUP)
        if group is not None:
            joining = [m.join_waiter for m in group.members.values() if m.join_waiter is not None]
            assert group.joining == len(joining)
            held |= set(joining)
            held |= {m.sync_waiter for m in group.members.values() if m.sync_waiter is not None}
        for consumer in self.all_consumers():
            for waiter in (consumer.joining, consumer.syncing):
                if waiter is not None and waiter not in self.driver.responses:
                    assert waiter in held, f"{consumer.name} waits for nothing"

    def teardown(self) -> None:
        """Once the faults end, live members own all partitions."""
        if not hasattr(self, "driver"):
            return
        self.driver.commit_log()
        for _ in range(120):
            for consumer in self.all_consumers():
                consumer.step()
            self.driver.wait(1)
        alive = [one for one in self.all_consumers() if not one.is_fenced]
        if not alive:
            return
        assert self.driver.state() is GroupState.STABLE
        assert len({one.generation for one in alive}) == 1
        owned = sorted(partition for one in alive for partition in one.owned or b"")
        assert owned == list(range(PARTITIONS))
        self.partition_has_one_owner_per_generation()
        self.acknowledged_offsets_never_go_back()


def timeless(stored: StoredGroup) -> tuple[object, ...]:
    return (
        stored.protocol_type,
        stored.generation,
        stored.protocol_name,
        stored.leader_id,
        stored.members,
    )


def parts(stored: StoredGroup) -> dict[str, bytes]:
    return {member.member_id: member.assignment for member in stored.members}


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = hypothesis_settings(
    max_examples=200, stateful_step_count=40, deadline=None
)
