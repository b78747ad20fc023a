"""A random search for two owners of a partition: members, time, failovers and refused writes.

Clients act on responses late, repeat requests, lose responses and disappear. The model is simple: a
partition belongs to the clients that have it in their application and that the coordinator still
counts as members. There is never more than one.
"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from riverrun.coordinator.consumer import emission
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.shard_kind import Waiter
from riverrun.model.errors import ErrorCode
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster
from tests.coordinator.shard_driver import GROUP, rebuilt

NAMES = ("a", "b", "c", "d")
TOPICS = ("orders", "users")
FENCED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver(FakeCluster(orders=5, users=3))
        self.clients: dict[str, Client] = {}
        self.pending: dict[str, Waiter] = {}

    @rule(name=st.sampled_from(NAMES), topics=st.sampled_from([TOPICS, TOPICS[:1], TOPICS[1:]]))
    def join(self, name: str, topics: tuple[str, ...]) -> None:
        if name not in self.clients:
            self.clients[name] = self.driver.client(name, *topics)
            self._send(self.clients[name], epoch=0)
            self._receive(name)

    @rule(is_slow=st.booleans())
    def all_beat(self, is_slow: bool) -> None:
        for name in list(self.clients):
            self.beat(name, is_slow, is_late=False)

    @rule(name=st.sampled_from(NAMES), is_slow=st.booleans(), is_late=st.booleans())
    def beat(self, name: str, is_slow: bool, is_late: bool) -> None:
        """A slow client keeps revoked partitions; a late one gets its response later."""
        client = self.clients.get(name)
        if client is not None and name not in self.pending:
            client.is_slow = is_slow
            self._send(client)
            if not is_late:
                self._receive(name)

    @rule(name=st.sampled_from(NAMES))
    def revoke(self, name: str) -> None:
        """The application gives up what the coordinator no longer assigns."""
        client = self.clients.get(name)
        group = self.driver.shard.consumers.groups.get(GROUP)
        if client is None or group is None or name not in group.members:
            return
        wanted = group.members[name].current.assigned
        client.owned = {slot: None for slot in client.owned if slot in wanted}

    @rule(name=st.sampled_from(NAMES), is_clean=st.booleans())
    def go(self, name: str, is_clean: bool) -> None:
        client = self.clients.pop(name, None)
        self.pending.pop(name, None)
        if client is not None and is_clean:
            client.owned = {}
            client.send(epoch=-1, topic_partitions=None)

    @rule(name=st.sampled_from(NAMES))
    def lose_response(self, name: str) -> None:
        self.pending.pop(name, None)

    @rule(name=st.sampled_from(NAMES))
    def receive(self, name: str) -> None:
        self._receive(name)

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.driver.wait(seconds)

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 3))
    def grow(self, name: str, count: int) -> None:
        topic = self.driver.cluster.topics[name]
        if topic.partitions < 9:
            self.driver.change_topic(name, topic.partitions + count)

    @rule()
    def hold(self) -> None:
        self.driver.hold()

    @rule()
    def commit(self) -> None:
        self.driver.commit_log()

    @rule()
    def refuse(self) -> None:
        self.driver.refuse_log()

    @rule()
    def restart(self) -> None:
        self.driver.restart()
        self.pending.clear()

    def _send(self, client: Client, epoch: int | None = None) -> None:
        if epoch == 0:
            client.owned = {}
        self.pending[client.id] = client.send(epoch)

    def _receive(self, name: str) -> None:
        client, waiter = self.clients.get(name), self.pending.get(name)
        if client is None or waiter is None or waiter not in self.driver.responses:
            return
        del self.pending[name]
        if client.receive(waiter) in FENCED:
            client.owned = {}
            self._send(client, epoch=0)

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        group = self.driver.shard.consumers.groups.get(GROUP)
        owners: dict[object, str] = {}
        for name, client in self.clients.items():
            member = None if group is None else group.members.get(name)
            if member is None or client.epoch not in (
                member.current.epoch,
                member.current.previous_epoch,
            ):
                continue  # fenced: its commits are refused
            for slot in client.owned:
                assert slot not in owners, f"{slot} belongs to {owners[slot]} and {name}"
                owners[slot] = name

    @invariant()
    def the_log_gives_the_same_group(self) -> None:
        driver = self.driver
        if driver.is_held or driver._in_flight:
            return
        shard = rebuilt(driver.settings, driver.randomness, driver.log, driver.view)
        turn = shard.turn(driver.now, driver.now_ms)
        shard.restore(turn, shard.known_ids())
        ours, theirs = driver.shard.consumers.groups, shard.consumers.groups
        assert [_content(one) for one in ours.values()] == [_content(o) for o in theirs.values()]

    def teardown(self) -> None:
        """When all is quiet the group becomes stable and balanced."""
        driver = self.driver
        driver.commit_log()
        for client in self.clients.values():
            client.is_slow = False
        for _ in range(12):
            driver.wait(2)
            for name, client in self.clients.items():
                if client.receive(client.send()) in FENCED:
                    client.owned = {}
                    client.receive(client.send(epoch=0))
                self.pending.pop(name, None)
            driver.wait(4)
        group = driver.shard.consumers.groups.get(GROUP)
        if not self.clients or group is None:
            return
        assert group.state.value == "Stable", group.state
        subscribed = {topic for one in self.clients.values() for topic in one.topics}
        wanted = sum(driver.cluster.topics[topic].partitions for topic in subscribed)
        assert sum(len(client.owned) for client in self.clients.values()) == wanted


def _content(group: EpochGroup) -> object:
    return (
        group.at,
        group.target_at,
        {one.member_id: (one.details, one.current) for one in group.members.values()},
        group.targets,
        group.owners,
    )


class SlicedMachine(ConsumerMachine):
    """The same group as if it were large: each target assignment takes many turns."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = (emission.WORK_PER_TURN, emission.RECORD_WORK_PER_TURN)
        emission.WORK_PER_TURN = emission.RECORD_WORK_PER_TURN = 3  # type: ignore[misc]

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            emission.WORK_PER_TURN, emission.RECORD_WORK_PER_TURN = self.limits  # type: ignore[misc]


ConsumerMachine.TestCase.settings = hypothesis_settings(stateful_step_count=40)
SlicedMachine.TestCase.settings = hypothesis_settings(stateful_step_count=40)
test_partitions_have_one_owner = ConsumerMachine.TestCase
test_partitions_of_large_groups_have_one_owner = SlicedMachine.TestCase
