"""``Cluster``: a real cluster in a ``with`` block."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from riverrun.client.pool import ConnectionPool
from riverrun.testing import operations
from riverrun.testing.operations import (
    DEFAULT_REPLICATION_FACTOR,
    ConsumedRecord,
    ConsumerGroup,
    Value,
)
from riverrun.testing.processes import (
    KILL_SECONDS_MAX,
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    ClusterError,
    ClusterProcesses,
    Settings,
)

Result = TypeVar("Result")
IN_SYNC_SECONDS_MAX = 30.0


class Cluster:
    """A cluster of real nodes on free ports, in a temporary folder.

    ::

        with Cluster() as kafka:
            topic = kafka.topic(partitions=3)
            kafka.produce(topic, ["one", "two"])
            assert len(kafka.records(topic)) == 2

    The nodes end with the block, and also when the test process is killed. Methods may be called
    from any thread, also while an event loop runs. Node ids start with 1.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        settings: Settings | None = None,
        start_timeout_s: float = START_SECONDS_MAX,
    ) -> None:
        """``settings`` are broker settings for all nodes; they override the test defaults."""
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self._count = nodes
        self._settings = dict(settings or {})
        self._start_timeout_s = start_timeout_s
        self._processes: ClusterProcesses | None = None
        self._external: str | None = None

    @classmethod
    def connect(cls, bootstrap: str) -> Self:
        """A running cluster that tests only use. Methods that act on nodes raise ClusterError."""
        cluster = cls()
        cluster._external = bootstrap
        return cluster

    @classmethod
    def of_processes(cls, processes: ClusterProcesses) -> Self:
        """A cluster that several test processes share; the caller ends it."""
        cluster = cls(len(processes.state.nodes))
        cluster._processes = processes
        return cluster

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and self._processes is not None:
            error.add_note(f"log of the cluster:\n{self._processes.log_tail()}")
        self.close()

    def open(self) -> None:
        """Start the nodes. Raises ClusterError with their log if one cannot start."""
        if self._processes is None and self._external is None:
            self._processes = ClusterProcesses.start(
                nodes=self._count, settings=self._settings, timeout_s=self._start_timeout_s
            )

    def close(self) -> None:
        """End the nodes and delete their data. May be called twice."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    # Addresses

    @property
    def bootstrap(self) -> str:
        """``host:port,host:port`` for ``bootstrap.servers``."""
        return self._external or self._own().state.bootstrap

    @property
    def reachable_bootstrap(self) -> str:
        """``bootstrap`` without the nodes that are cut off. They serve clients, but know nothing
        new."""
        if self._external is not None:
            return self._external
        state = self._own().state
        addresses = [node.client for node in state.nodes if node.id not in state.cut_off]
        return ",".join(addresses) or state.bootstrap

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of all nodes that were started here."""
        return tuple(node.id for node in self._own().state.nodes)

    def address(self, node: int) -> str:
        """``host:port`` of one node."""
        return self._own().node(node).client

    def logs(self) -> str:
        """The log of all nodes."""
        return "" if self._external else self._own().logs()

    def check_reachable(self) -> None:
        """Raise OSError if no node answers within a few seconds, and ValueError if ``bootstrap``
        is no address."""
        bootstrap = self.reachable_bootstrap
        _run_in_thread(lambda: operations.check_reachable(bootstrap))

    # Topics, records and groups

    def topic(
        self,
        partitions: int = 1,
        *,
        config: Settings | None = None,
        name: str | None = None,
        replication_factor: int = DEFAULT_REPLICATION_FACTOR,
    ) -> str:
        """Create a topic with a unique name. Returns the name when all nodes know the topic.

        ``name`` is used as it is. ``config`` are topic settings.
        """
        chosen = name or operations.unique_name("topic")
        self._run(
            lambda pool: operations.create_topic(
                pool,
                chosen,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config or {},
            )
        )
        return chosen

    def delete_topic(self, topic: str) -> None:
        self._run(lambda pool: operations.delete_topic(pool, topic))

    def produce(self, topic: str, values: Iterable[Value], *, partition: int | None = None) -> None:
        """Write values or ``NewRecord``s with acks=all. Keys choose partitions as in Kafka."""
        self._run(lambda pool: operations.produce(pool, topic, values, partition))

    def records(self, topic: str) -> list[ConsumedRecord]:
        """All records up to the current end, by partition and offset."""
        return self._run(lambda pool: operations.read_all(pool, topic))

    def groups(self) -> dict[str, ConsumerGroup]:
        """All consumer groups by name, with members, committed offsets and lag."""
        return self._run(operations.list_groups)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the node that leads a partition."""
        return self._run(lambda pool: operations.leader(pool, topic, partition))

    def wait_in_sync(self, timeout_s: float = IN_SYNC_SECONDS_MAX) -> None:
        """Wait until all replicas are in sync, for example before another node is killed."""
        self._run(lambda pool: operations.wait_in_sync(pool, timeout_s))

    # Faults

    def kill(self, node: int) -> None:
        """End a node with SIGKILL, as a crash would."""
        self._own().end(node, signal.SIGKILL, KILL_SECONDS_MAX)

    def stop(self, node: int) -> None:
        """Stop a node as an operator would: it first hands over its partitions."""
        self._own().end(node, signal.SIGTERM, STOP_SECONDS_MAX)

    def start(self, node: int) -> None:
        """Start a killed or stopped node with its data. Returns when it serves clients."""
        self._own().start_node(node, self._start_timeout_s)

    def pause(self, node: int) -> None:
        """Suspend a node with SIGSTOP: its connections stay open, but it does not respond."""
        self._own().send_signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Continue a paused node."""
        self._own().send_signal(node, signal.SIGCONT)

    def cut_off(self, node: int) -> None:
        """Partition a node from all other nodes, but not from clients."""
        self._own().set_cut_off(node, True)

    def reconnect(self, node: int) -> None:
        """End the partition of a node."""
        self._own().set_cut_off(node, False)

    def fill_disk(self, node: int) -> None:
        """Take all free space from a node's disk: its writes fail with ENOSPC."""
        self._own().set_full(node, True)

    def free_disk(self, node: int) -> None:
        """Give a node its disk space back."""
        self._own().set_full(node, False)

    def _own(self) -> ClusterProcesses:
        if self._external is not None:
            raise ClusterError(f"the nodes of {self._external} were not started by this test")
        if self._processes is None:
            raise ClusterError("the cluster is not running; use `with Cluster() as kafka:`")
        return self._processes

    def _run(self, operation: Callable[[ConnectionPool], Awaitable[Result]]) -> Result:
        bootstrap = self.reachable_bootstrap

        async def connected() -> Result:
            async with operations.open_pool(bootstrap) as pool:
                return await operation(pool)

        return _run_in_thread(connected)


def _run_in_thread(operation: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine in an event loop of its own, because the caller's thread may have one."""

    async def wait() -> Result:
        return await operation()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="riverrun-testing") as executor:
        return executor.submit(lambda: asyncio.run(wait())).result()
