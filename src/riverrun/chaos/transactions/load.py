"""Starts and stops the transactional clients of a scenario, and checks what they did and saw."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from riverrun.chaos.clients.addresses import own_pool
from riverrun.chaos.cluster import ClusterFailed, until
from riverrun.chaos.history import Action, History
from riverrun.chaos.transactions.chains import AioChain, ChainContext, ConfluentChain
from riverrun.chaos.transactions.feeders import (
    CALL_SECONDS_MAX,
    AioFeeder,
    ConfluentFeeder,
    FeedContext,
    OwnFeeder,
)
from riverrun.chaos.transactions.java_chain import JavaChain
from riverrun.client.connection import UnsupportedApi
from riverrun.client.fetcher import read_from
from riverrun.client.offsets import committed_offsets
from riverrun.client.partitions import fetch
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.testing.transaction_checks import Violation, check_transactions
from riverrun.testing.transaction_history import (
    FinalState,
    GroupKey,
    PartitionKey,
    Row,
    TransactionHistory,
)

PARTITIONS = 2
SETTLE_SECONDS_MAX = 90.0
PROGRESS_SECONDS_MAX = 4 * CALL_SECONDS_MAX
"""A chain whose transaction times out waits for a commit, an abort and a new producer in turn."""
JOIN_SECONDS_MAX = 3 * CALL_SECONDS_MAX


class TransactionLoad:
    """``start``, ``finish``, ``check``.

    The Java clients take part if ``java`` tells how to start them.
    """

    def __init__(
        self, history: History, bootstrap: str, topic: str, *, java: list[str] | None
    ) -> None:
        self.inputs, self.outputs = f"{topic}-inputs", f"{topic}-outputs"
        self._history = history
        self._bootstrap = bootstrap
        self._stop_chains = threading.Event()
        self._final: FinalState | None = None
        self.feed = FeedContext(
            bootstrap=bootstrap,
            topic=self.inputs,
            partitions=PARTITIONS,
            history=TransactionHistory(),
            now=history.now,
            stop=threading.Event(),
        )
        self._feeders: list[ConfluentFeeder | AioFeeder | OwnFeeder] = [
            ConfluentFeeder(self.feed, f"{topic}-confluent-feeder"),
            AioFeeder(self.feed, f"{topic}-aiokafka-feeder"),
            OwnFeeder(self.feed, f"{topic}-own-feeder"),
        ]
        self._chains: list[ConfluentChain | AioChain | JavaChain] = [
            ConfluentChain(self._context(f"{topic}-confluent-chain")),
            AioChain(self._context(f"{topic}-aiokafka-chain")),
        ]
        if java is not None:
            self._chains.append(JavaChain(self._context(f"{topic}-java-chain"), java))
        self._threads: dict[str, threading.Thread] = {}

    def _context(self, group: str) -> ChainContext:
        return ChainContext(self.feed, group=group, outputs=self.outputs, stop=self._stop_chains)

    @property
    def transactional_id(self) -> str:
        """An id whose coordinator scenarios may want to hit."""
        return self._feeders[0].name

    def start(self) -> None:
        for client in (*self._feeders, *self._chains):
            run: Callable[[], Any] = client.run
            target = _in_a_loop(run) if asyncio.iscoroutinefunction(run) else run
            thread = threading.Thread(target=target, name=client.name, daemon=True)
            self._threads[client.name] = thread
            thread.start()

    def progress(self, *, seconds: float = PROGRESS_SECONDS_MAX) -> None:
        """Wait until every client has committed once more."""
        since, names = self.feed.now(), list(self._threads)
        last = self.feed.last_commit

        def missing() -> list[str]:
            return [name for name in names if last.get(name, -1.0) <= since]

        try:
            until(lambda: not missing(), seconds=seconds, what="every client commits")
        except ClusterFailed as error:
            raise ClusterFailed(f"{error}: {', '.join(missing())} did not") from None

    # End of the run

    def finish(self) -> None:
        """Stop the feeders, let the chains process all inputs, and read everything."""
        self.feed.stop.set()
        self._join([feeder.name for feeder in self._feeders])
        self._settle()
        self._stop_chains.set()
        self._join([chain.name for chain in self._chains])
        # Again, because the topics are not read at one moment and the chains were running.
        self._final = self._settle()
        count = self.feed.history.commits
        self._history.add("transactions", Action.NOTE, text=f"{count} transactions committed")

    def _settle(self) -> FinalState:
        """Wait until no transaction is open and all inputs are processed."""
        end = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            found = asyncio.run(self._read_all())
            if isinstance(found, FinalState):
                return found
            if time.monotonic() > end:
                raise ClusterFailed(f"{SETTLE_SECONDS_MAX:g} s after the last transaction, {found}")
            time.sleep(0.2)

    def abandon(self) -> None:
        self.feed.stop.set()
        self._stop_chains.set()

    def check(self) -> list[Violation]:
        """The violations in the history; none if the run did not get to its end."""
        if self._final is None:
            return []
        return check_transactions(self.feed.history, self._final)

    def _join(self, names: list[str]) -> None:
        for name in names:
            self._threads[name].join(JOIN_SECONDS_MAX)
            if self._threads[name].is_alive():
                raise ClusterFailed(f"{name} did not finish within {JOIN_SECONDS_MAX:g} s")

    async def _read_all(self) -> FinalState | str:
        """The final state, or why it is not there yet."""
        try:
            async with own_pool(self._bootstrap) as pool:
                return await self._read_with(pool)
        except (KafkaError, UnsupportedApi, OSError) as error:
            return f"the topics cannot be read: {error}"

    async def _read_with(self, pool: ConnectionPool) -> FinalState | str:
        logs: dict[PartitionKey, list[Row]] = {}
        for topic in (self.inputs, self.outputs):
            for index in range(PARTITIONS):
                rows = await _read_committed(pool, topic, index)
                if rows is None:
                    return f"{topic}-{index} has an open transaction"
                logs[topic, index] = rows
        offsets: dict[GroupKey, int] = {}
        inputs = [_place(self.inputs, index) for index in range(PARTITIONS)]
        for group in (chain.name for chain in self._chains):
            committed = await committed_offsets(pool, group, inputs)
            for at in inputs:
                offset = committed.get(at, 0)
                rows = logs[self.inputs, at.partition]
                if rows and offset <= rows[-1][0]:
                    return f"{group} is at {offset} of {at}, {rows[-1][0]} is the last record"
                offsets[group, self.inputs, at.partition] = offset
        return FinalState(logs=logs, offsets=offsets)


async def _read_committed(pool: ConnectionPool, topic: str, partition: int) -> list[Row] | None:
    """All committed records; None if a transaction is open."""
    rows: list[Row] = []
    position = 0
    while True:
        found = await fetch(pool, topic, partition, position, max_wait_ms=0, is_committed_only=True)
        if found.last_stable_offset != found.high_watermark:
            return None
        records, end = read_from(found.records, position, found.aborted)
        if end == position:
            return rows
        rows += [(record.offset, (record.value or b"").decode()) for record in records]
        position = end


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def _in_a_loop(run: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(run())
