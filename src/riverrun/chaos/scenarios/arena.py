"""The verbs of scenarios: each acts on the cluster and records it in the history.

A scenario states what happens and what must follow. The checks of data are separate.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from riverrun.chaos.clients.workload import ChaosWorkload
from riverrun.chaos.cluster import ChaosCluster, until
from riverrun.chaos.faults.link_faults import CLIENTS, Mode
from riverrun.chaos.groups.load import GroupLoad
from riverrun.chaos.history import Action, History
from riverrun.chaos.moves.mover import MovingAdministrator
from riverrun.chaos.probe import PartitionView, Probe, ProbedQuorum
from riverrun.chaos.transactions.load import TransactionLoad
from riverrun.coordinator.hashing import partition_of
from riverrun.model.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

PROGRESS_SECONDS_MAX = 15.0
FIND_SECONDS_MAX = 15.0


class PromiseBroken(Exception):
    """The cluster broke a promise to its clients."""


class Arena:
    """A running cluster under load."""

    def __init__(
        self,
        cluster: ChaosCluster,
        probe: Probe,
        history: History,
        workload: ChaosWorkload,
        *,
        rng: random.Random,
        log: Callable[[str], None],
        transactions: TransactionLoad | None = None,
        groups: GroupLoad | None = None,
        mover: MovingAdministrator | None = None,
    ) -> None:
        self.cluster, self.probe, self.history = cluster, probe, history
        self.workload, self.rng = workload, rng
        self.transactions = transactions
        self.groups = groups
        self.mover = mover
        self._log = log

    @property
    def ids(self) -> list[int]:
        return list(self.cluster.nodes)

    def others(self, *numbers: int) -> list[int]:
        return [number for number in self.ids if number not in numbers]

    # History

    def note(self, text: str) -> None:
        self._log(text)
        self.history.add("arena", Action.NOTE, text=text)

    def _fault(self, node: int, state: str, text: str) -> None:
        self._log(text)
        self.history.add("arena", Action.FAULT, node=node, value=state, text=text)

    # Processes

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self._fault(number, "killed", f"kill -9 node {number}")
        self.cluster.kill_together(list(numbers))

    def stop(self, number: int) -> None:
        self._fault(number, "stopped", f"stop node {number}")
        self.cluster.stop(number)

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self._fault(number, "", f"start node {number}")
            self.cluster.start(number)

    def pause(self, number: int) -> None:
        self._fault(number, "paused", f"pause node {number}")
        self.cluster.pause(number)

    def resume(self, number: int) -> None:
        self._fault(number, "", f"resume node {number}")
        self.cluster.resume(number)

    # The network

    def cut_off(self, number: int, *, clients: bool = False, mode: Mode = Mode.HOLD) -> None:
        """Partition the node from all other nodes, and from clients if ``clients``."""
        self._fault(number, "cut off", f"cut off node {number} ({mode})")
        for other in self.others(number):
            self.cluster.network.separate(number, other, mode=mode)
        if clients:
            self.cluster.network.separate(number, CLIENTS, mode=mode)

    def mute(self, number: int, *, clients: bool = False) -> None:
        """Block traffic from the node to the others, but not back."""
        self._fault(number, "mute", f"block traffic from node {number}")
        for other in self.others(number):
            self.cluster.network.block(number, other)
        if clients:
            self.cluster.network.block(number, CLIENTS)

    def deafen(self, number: int, *, clients: bool = False) -> None:
        """Block traffic from the others to the node, but not back."""
        self._fault(number, "deaf", f"block traffic to node {number}")
        for other in self.others(number):
            self.cluster.network.block(other, number)
        if clients:
            self.cluster.network.block(CLIENTS, number)

    def slow_link(self, source: int, target: int, *, bytes_per_second: int) -> None:
        """Slow down replication between two nodes, but not the controller channel."""
        self._fault(target, "slow", f"slow link from node {source} to node {target}")
        self.cluster.network.slow(
            source, target, bytes_per_second=bytes_per_second, channel="client"
        )

    def heal(self, *numbers: int) -> None:
        """End all network faults."""
        for number in numbers or self.ids:
            self._fault(number, "", f"heal the network of node {number}")
        self.cluster.network.heal()

    def impair(self, number: int, **how: float) -> None:
        text = ", ".join(f"{name} {value:g}" for name, value in how.items()) or "normal"
        self._fault(number, "impaired" if how else "", f"node {number}: {text}")
        self.cluster.impair(number, **how)

    # Views of the cluster

    def partition(self, number: int = 0) -> PartitionView:
        """The state of a partition, once it has a running leader."""
        found: list[PartitionView] = []

        def look() -> bool:
            view = self.probe.topic(self.workload.topic)
            if view is None or view.partitions[number].leader not in self.cluster.running:
                return False
            found.append(view.partitions[number])
            return True

        until(look, seconds=FIND_SECONDS_MAX, what=f"a leader of partition {number}")
        return found[-1]

    def leader(self, partition: int = 0) -> int:
        return self.partition(partition).leader

    def leader_of(self, topic: str, partition: int) -> int:
        """The leader of a partition of any topic, once it runs."""
        found: list[int] = []

        def look() -> bool:
            view = self.probe.topic(topic)
            if view is None or partition not in view.partitions:
                return False
            found.append(view.partitions[partition].leader)
            return found[-1] in self.cluster.running

        until(look, seconds=FIND_SECONDS_MAX, what=f"a leader of {topic}-{partition}")
        return found[-1]

    def transaction_coordinator(self) -> int:
        """The coordinator of one of the transactional clients, once it runs."""
        assert self.transactions is not None, "the scenario has transactions"
        return self._coordinator(TRANSACTIONS_TOPIC, self.transactions.transactional_id)

    def group_coordinator(self) -> int:
        """The coordinator of the scenario's group, once it runs."""
        assert self.groups is not None, "the scenario has a group"
        return self._coordinator(OFFSETS_TOPIC, self.groups.group)

    def _coordinator(self, topic: str, name: str) -> int:
        view = self.probe.topic(topic)
        count = 1 if view is None else len(view.partitions)
        return self.leader_of(topic, partition_of(name, count))

    def rotate_replicas(self, topic: str, *, by: int, count: int) -> None:
        """Move all partitions of a topic: other nodes come first, and ``count`` of them stay."""
        self.note(f"move {topic} by {by}, to {count} replicas")
        ids = self.ids
        view = self.probe.topic(topic)
        targets = {}
        for partition in () if view is None else view.partitions:
            place = (partition + by) % len(ids)
            targets[partition] = tuple([*ids[place:], *ids[:place]][:count])
        until(
            lambda: self.probe.move(topic, targets),
            seconds=FIND_SECONDS_MAX,
            what=f"the controller accepts the move of {topic}",
        )

    def quorum(self) -> ProbedQuorum:
        """The newest state of the quorum, once it has a running leader."""
        found: list[ProbedQuorum] = []

        def look() -> bool:
            views = [view for n in self.cluster.running if (view := self.probe.quorum(n))]
            best = max(views, key=lambda view: (view.epoch, len(view.voters)), default=None)
            if best is None or best.leader not in self.cluster.running:
                return False
            # Only the leader has the current progress of all voters.
            found.append(self.probe.quorum(best.leader) or best)
            return found[-1].leader in self.cluster.running

        until(look, seconds=FIND_SECONDS_MAX, what="a leader of the quorum")
        return found[-1]

    def controller(self) -> int:
        return self.quorum().leader

    # Waits

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def expect(self, condition: Callable[[], object], *, seconds: float, what: str) -> None:
        until(condition, seconds=seconds, what=what)

    def progress(self, records: int = 50, *, seconds: float = PROGRESS_SECONDS_MAX) -> None:
        """Wait until this many more records are acknowledged."""
        since = self.history.now()
        until(
            lambda: self.workload.sent(since=since) >= records,
            seconds=seconds,
            what=f"{records} more records are acknowledged",
        )

    def progress_everywhere(self, *, seconds: float = PROGRESS_SECONDS_MAX) -> None:
        """Wait until every partition acknowledges a record."""
        since = self.history.now()

        def look() -> bool:
            seen: dict[int, None] = {}
            for operation in reversed(self.history.operations()):
                if operation.time < since:
                    break
                if operation.is_acknowledgement:
                    seen[operation.partition] = None
            return len(seen) == self.workload.load.partitions

        until(look, seconds=seconds, what="every partition acknowledges a record")

    def metadata_progress(self, changes: int = 3, *, seconds: float = PROGRESS_SECONDS_MAX) -> None:
        since = self.history.now()
        until(
            lambda: self.workload.administered(since=since) >= changes,
            seconds=seconds,
            what=f"{changes} more metadata changes are confirmed",
        )

    @contextmanager
    def nothing_acknowledged(self, *, grace_seconds: float) -> Iterator[None]:
        """Fail if a record is acknowledged within the block, after a grace period."""
        began = self.history.now()
        yield
        late = [
            operation
            for operation in self.history.operations()
            if operation.is_acknowledgement and operation.time > began + grace_seconds
        ]
        if late:
            raise PromiseBroken(
                f"{len(late)} records were acknowledged without enough in-sync replicas, "
                f"the first one {late[0].time - began:.2f} s after the fault"
            )

    def isr_is(self, count: int, *, partition: int = 0, seconds: float) -> None:
        until(
            lambda: len(self.partition(partition).isr) == count,
            seconds=seconds,
            what=f"partition {partition} has {count} in-sync replicas",
        )

    def all_in_sync(self, *, seconds: float = 20.0) -> None:
        """Wait until all replicas of the topic are in sync."""

        def look() -> bool:
            view = self.probe.topic(self.workload.topic)
            return view is not None and all(
                len(row.isr) == len(row.replicas) for row in view.partitions.values()
            )

        until(look, seconds=seconds, what="all replicas are in sync")
