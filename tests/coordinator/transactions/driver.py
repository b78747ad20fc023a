"""A driver for tests of one shard: producers act, time passes, the log and markers on command.

Nothing waits. Records are committed at once unless the test holds the log. Markers are written when
the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from riverrun.coordinator.shard_kind import Waiter
from riverrun.coordinator.transactions.ending import EndTransaction
from riverrun.coordinator.transactions.partitions import (
    TransactionPartitions,
    verify_partitions,
)
from riverrun.coordinator.transactions.producers import InitProducer
from riverrun.coordinator.transactions.records import TransactionLogRecord, decode, encode
from riverrun.coordinator.transactions.settings import TransactionSettings
from riverrun.coordinator.transactions.shard import TransactionShard
from riverrun.coordinator.transactions.transaction import Transaction
from riverrun.coordinator.transactions.turn import EndMarkers, ProducerIdNeeded, TransactionTurn
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId

START_MS = 1_700_000_000_000
APP = "app"


def settings(**texts: str) -> TransactionSettings:
    """Settings by name with underscores for dots."""
    return TransactionSettings.from_texts(
        {name.replace("_", "."): text for name, text in texts.items()}
    )


def by_topic(names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``orders-0``, ``orders-1`` as indexes by topic."""
    topics: dict[str, tuple[int, ...]] = {}
    for name in names:
        topic, _, index = name.rpartition("-")
        topics[topic] = (*topics.get(topic, ()), int(index))
    return topics


class TransactionDriver:
    def __init__(self, *, server_version: int = 2, **texts: str) -> None:
        self.settings = settings(**texts)
        self.server_version = server_version
        self.now = 1000.0
        self.log: list[TransactionLogRecord] = []
        self.responses: dict[Waiter, Any] = {}
        self.markers: dict[str, EndMarkers] = {}
        """Markers that were sent and not yet written."""
        self.ended: list[bool] = []
        self.is_held = False
        self.listener: Callable[[str], None] = lambda _event: None
        self.shard = self.new_shard()
        self._in_flight: list[TransactionTurn] = []
        self._waiters = 0
        self._next_id = 1000

    def new_shard(self) -> TransactionShard:
        return TransactionShard(self.settings, lambda: self.server_version)

    # The log and time

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.now * 1000)

    def turn(self) -> TransactionTurn:
        return self.shard.turn(self.now, self.now_ms)

    def finish(self, turn: TransactionTurn) -> None:
        self.ended += turn.ended
        for markers in turn.markers:
            self.markers[markers.transactional_id] = markers
            self.listener(f"sends {_marker_text(markers)}")
        if not turn.records:
            self._answer(turn)
            return
        for record in turn.records:
            self.listener(f"writes {_record_text(record)}")
        self.shard.sent(turn.records)
        self._in_flight.append(turn)
        if not self.is_held:
            self.commit_log()

    def _answer(self, turn: TransactionTurn) -> None:
        for waiter, response in turn.replies:
            self.responses[waiter] = response
            if not isinstance(response, ProducerIdNeeded):
                self.listener(f"answers {waiter}: {answer_text(response)}")

    def hold(self) -> None:
        self.is_held = True

    def commit_log(self) -> None:
        """Commit all turns in flight."""
        self.is_held = False
        while self._in_flight:
            written = self._in_flight.pop(0)
            for record in written.records:
                self.log.append(decode(*encode(record, self.server_version)))
            turn = self.turn()
            self.shard.committed(turn, written.records)
            self._answer(written)
            self.finish(turn)

    def refuse_log(self, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Refuse all turns in flight."""
        self.is_held = False
        refused, self._in_flight = self._in_flight, []
        for written in refused:
            turn = self.turn()
            self.shard.refused(turn, written.records, code)
            for waiter, _ in written.replies:
                self.responses[waiter] = KafkaError(code)
                self.listener(f"answers {waiter}: {code.name}")
            self.finish(turn)

    def wait(self, ms: int) -> None:
        self.now += ms / 1000
        turn = self.turn()
        self.shard.expire(turn)
        self.finish(turn)

    def fail_over(self) -> None:
        """Another node loads the log; requests in flight are lost."""
        self._in_flight = []
        self.is_held = False
        self.markers = {}
        self.shard = self.new_shard()
        for record in self.log:
            self.shard.replay(record)
        turn = self.turn()
        self.shard.restore(turn, self.shard.known_ids())
        assert not turn.records
        self.finish(turn)

    def write_markers(self, transactional_id: str = APP) -> None:
        markers = self.markers.pop(transactional_id)
        turn = self.turn()
        self.shard.markers_written(turn, markers)
        self.finish(turn)

    # Requests

    def ask(self, act: Callable[[TransactionTurn, Waiter, ProducerId | None], None]) -> Waiter:
        """A request, repeated with a new producer id if it needs one."""
        self._waiters += 1
        waiter = Waiter(self._waiters)
        for new_id in (None, ProducerId(self._next_id)):
            turn = self.turn()
            try:
                act(turn, waiter, new_id)
            except KafkaError as error:
                turn.reply(waiter, error)
            self.finish(turn)
            if not isinstance(self.responses.get(waiter), ProducerIdNeeded):
                return waiter
            del self.responses[waiter]
            self._next_id += 1
        return waiter

    def init(
        self,
        transactional_id: str = APP,
        *,
        timeout_ms: int = 60_000,
        producer: tuple[int, int] = (-1, -1),
    ) -> Any:
        request = InitProducer(
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            producer_id=ProducerId(producer[0]),
            producer_epoch=producer[1],
        )
        waiter = self.ask(
            lambda turn, waiter, new_id: self.shard.init_producer(
                turn, waiter, request, new_id=new_id
            )
        )
        return self.answer(waiter)

    def add(
        self,
        producer: tuple[int, int],
        *names: str,
        transactional_id: str = APP,
        version: int = 0,
        connection: int | None = 1,
    ) -> Any:
        request = TransactionPartitions(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=by_topic(names),
        )
        waiter = self.ask(
            lambda turn, waiter, _: self.shard.add_partitions(
                turn,
                waiter,
                request,
                client_version=version,
                connection=connection,
            )
        )
        return self.answer(waiter)

    def verify(self, producer: tuple[int, int], *names: str, transactional_id: str = APP) -> Any:
        request = TransactionPartitions(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=by_topic(names),
        )
        try:
            known = self.shard.transactions.get(transactional_id)
            return list(verify_partitions(known, request).values())
        except KafkaError as error:
            return error.code

    def end(
        self,
        producer: tuple[int, int],
        *,
        is_commit: bool,
        transactional_id: str = APP,
        version: int = 0,
        connection: int = 1,
    ) -> Any:
        request = EndTransaction(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            is_commit=is_commit,
            client_version=version,
        )
        waiter = self.ask(
            lambda turn, waiter, new_id: self.shard.end_transaction(
                turn, waiter, request, connection=connection, new_id=new_id
            )
        )
        return self.answer(waiter)

    def answer(self, waiter: Waiter) -> Any:
        """(producer id, epoch), an error code, NONE, or the waiter if the request waits."""
        if waiter not in self.responses:
            return waiter
        response = self.responses[waiter]
        if isinstance(response, KafkaError):
            return response.code
        if hasattr(response, "producer_epoch"):
            return (response.producer_id, response.producer_epoch)
        return ErrorCode.NONE

    def state(self, transactional_id: str = APP) -> Transaction:
        return self.shard.transactions[transactional_id]


def answer_text(response: Any) -> str:
    if isinstance(response, KafkaError):
        return response.code.name
    if hasattr(response, "producer_epoch"):
        return f"{response.producer_id}/{response.producer_epoch}"
    return "NONE"


def _names(partitions: Any) -> str:
    return " ".join(f"{topic}-{index}" for topic, some in partitions.items() for index in some)


def _marker_text(markers: EndMarkers) -> str:
    kind = "COMMIT" if markers.is_commit else "ABORT"
    text = f"{kind} {markers.producer_id}/{markers.producer_epoch}"
    return f"{text} v{markers.transaction_version} to {_names(markers.partitions) or 'nothing'}"


def _record_text(record: TransactionLogRecord) -> str:
    value = record.value
    if value is None:
        return f"{record.transactional_id}: tombstone"
    text = f"{record.transactional_id}: {value.status.title} {value.producer_id}"
    text += f"/{value.producer_epoch}"
    if value.next_producer_id >= 0:
        text += f" next {value.next_producer_id}"
    if value.previous_producer_id >= 0:
        text += f" previous {value.previous_producer_id}"
    return f"{text} {_names(value.partitions)}".rstrip()
