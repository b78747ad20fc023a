"""All transactional ids of one partition of ``__transaction_state``.

Durable state (``transactions``) changes only in ``replay``, when a record is committed. In memory
the shard has the ids with a record in flight, requests that wait, and deadlines.

**One change at a time.** While a record of an id is in flight, or while its markers are written,
other requests for the id cannot be decided. Kafka answers CONCURRENT_TRANSACTIONS, and clients ask
again every 20 to 100 ms. Here such a request is held and decided again when the id changes. After
``transaction.coordinator.hold.max.ms`` it gets that code.

**The newest connection speaks.** In transaction version 1 a producer keeps its epoch for many
transactions. A request that the network delayed, and that its client has given up and repeated on a
new connection, may arrive after the next transaction began. It has a valid epoch, so it would end
or extend the wrong transaction: lost writes, aborted reads and torn transactions. So the shard
remembers the newest connection that made a valid request for an id. A valid request of an older
connection is refused, and its connection is closed. The rule is safe for clients that behave well:

* A client that reconnects uses the newer connection from then on. One that returns to an older
  connection is disconnected, connects again and repeats its request: one round trip is lost.
* Only requests for the coordinator count. Clients may send Produce on other connections.
* A fenced or otherwise invalid request changes nothing. It gets its error on any connection, and
  does not count as the newest.
* InitProducerId starts a new epoch, so it is accepted on any connection. Requests from before it
  are fenced, and the next valid request names the newest connection again.
* From version 2 on each transaction has its own epoch, so the rule is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.shard_kind import SupersededConnection, Waiter
from riverrun.coordinator.transactions.ending import (
    EndTransaction,
    complete,
    end_transaction,
    fence,
)
from riverrun.coordinator.transactions.partitions import TransactionPartitions, add_partitions
from riverrun.coordinator.transactions.producers import InitProducer, init_producer
from riverrun.coordinator.transactions.records import TransactionLogRecord
from riverrun.coordinator.transactions.settings import TransactionSettings
from riverrun.coordinator.transactions.transaction import (
    EPOCH_BUMP_SINCE,
    Transaction,
    TransactionStatus,
    check_transition,
)
from riverrun.coordinator.transactions.turn import (
    EndMarkers,
    RequestOutcome,
    TransactionTimer,
    TransactionTimerKey,
    TransactionTurn,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId

EXPIRED_PER_TURN_MAX: Final = 500
"""Deadlines handled in one turn; the rest waits for the next one."""
HELD_PER_ID_MAX: Final = 20
"""Requests held for one id. A producer has one; others are repeated or come from old instances."""
COMPLETION_RETRY_MS: Final = 1000
BROKER_HOLD_MS: Final = 50
"""How long a request of a broker waits, from the last change of the id. It may carry requests of
other producers, which wait with it. So a transaction whose markers cannot be written delays them
once, and not with each attempt."""


class HeldRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A request for one transactional id that may have to wait."""

    waiter: Waiter
    transactional_id: str
    decide: Callable[[Transaction | None, int], RequestOutcome]
    """From the state and the time. Raises ``KafkaError``."""
    connection: int | None = None
    """The connection of a client that needs the rule of the newest connection."""
    starts_epoch: bool = False


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, settings: TransactionSettings, server_version: Callable[[], int]) -> None:
        """``server_version`` returns the finalised ``transaction.version``."""
        self.transactions: dict[str, Transaction] = {}
        self.deadlines: Deadlines[TransactionTimerKey] = Deadlines()
        self._settings = settings
        self._server_version = server_version
        self._in_flight: dict[str, TransactionLogRecord] = {}
        self._held: dict[str, list[HeldRequest]] = {}
        self._speakers: dict[str, int] = {}
        """The newest connection that made a valid request, by transactional id."""

    def turn(self, now: float, now_ms: int) -> TransactionTurn:
        return TransactionTurn(now=now, now_ms=now_ms, deadlines=self.deadlines)

    # The log

    def replay(self, record: TransactionLogRecord) -> None:
        """Apply a committed record: the only place where durable state changes."""
        if record.value is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = record.value

    def known_ids(self) -> list[str]:
        return list(self.transactions)

    def counts(self) -> dict[str, int]:
        return {"transactional_ids": len(self.transactions)}

    def restore(self, turn: TransactionTurn, ids: Iterable[str]) -> None:
        """After loading: set timeouts, and send the markers of decided transactions again."""
        for transactional_id in ids:
            self._follow_up(turn, transactional_id)

    def sent(self, records: Iterable[TransactionLogRecord]) -> None:
        for record in records:
            assert self._in_flight.get(record.transactional_id) is record, "a change is not noted"

    def committed(self, turn: TransactionTurn, records: Iterable[TransactionLogRecord]) -> None:
        """Apply committed records, and continue with the markers and requests they allow."""
        for record in records:
            self.replay(record)
            transactional_id = record.transactional_id
            del self._in_flight[transactional_id]
            if record.value is None:
                self._speakers.pop(transactional_id, None)
            elif record.value.status.is_complete:
                turn.ended.append(record.value.status is TransactionStatus.COMPLETE_COMMIT)
            self._follow_up(turn, transactional_id)
            self._decide_held(turn, transactional_id)

    def refused(
        self, turn: TransactionTurn, records: Iterable[TransactionLogRecord], code: ErrorCode
    ) -> None:
        """Records were not appended. The state is as before, and clients retry."""
        for record in records:
            transactional_id = record.transactional_id
            del self._in_flight[transactional_id]
            for request in self._held.pop(transactional_id, ()):
                self._release(turn, request, KafkaError(code))
            transaction = self.transactions.get(transactional_id)
            if transaction is None:
                continue
            if transaction.status.is_prepared:
                key = (TransactionTimer.COMPLETE, transactional_id, 0)
                turn.set_deadline(key, COMPLETION_RETRY_MS)
            elif transaction.status is TransactionStatus.ONGOING:
                left_ms = _timeout_left_ms(transaction, turn.now_ms)
                key = (TransactionTimer.TIMEOUT, transactional_id, 0)
                turn.set_deadline(key, left_ms or self._settings.abort_retry_ms)

    def unload(self, turn: TransactionTurn) -> None:
        """Drop held requests; the runner fails them."""
        self._held.clear()

    def _follow_up(self, turn: TransactionTurn, transactional_id: str) -> None:
        """Set the timeout of an open transaction, or send the markers of a decided one."""
        transaction = self.transactions.get(transactional_id)
        key = (TransactionTimer.TIMEOUT, transactional_id, 0)
        if transaction is not None and transaction.status is TransactionStatus.ONGOING:
            turn.set_deadline(key, _timeout_left_ms(transaction, turn.now_ms))
            return
        turn.cancel_deadline(key)
        if transaction is not None and transaction.status.is_prepared:
            turn.markers.append(
                EndMarkers(
                    transactional_id=transactional_id,
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.producer_epoch,
                    is_commit=transaction.status is TransactionStatus.PREPARE_COMMIT,
                    transaction_version=transaction.client_version,
                    partitions=transaction.partitions,
                )
            )

    def _write(
        self, turn: TransactionTurn, transactional_id: str, value: Transaction | None
    ) -> None:
        """Queue a change. No other change of the id may begin before it is committed."""
        assert transactional_id not in self._in_flight, f"{transactional_id} changes already"
        if value is not None:
            check_transition(self.transactions.get(transactional_id), value)
        record = TransactionLogRecord(transactional_id, value)
        self._in_flight[transactional_id] = record
        turn.records.append(record)

    # Requests

    def init_producer(
        self,
        turn: TransactionTurn,
        waiter: Waiter,
        request: InitProducer,
        *,
        new_id: ProducerId | None,
    ) -> None:
        is_new = request.transactional_id not in self.transactions
        if is_new and len(self.transactions) + len(self._in_flight) >= self._settings.ids_max:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        version = self._server_version()
        held = HeldRequest(
            waiter=waiter,
            transactional_id=request.transactional_id,
            decide=lambda known, now_ms: init_producer(
                known, request, now_ms, server_version=version, new_id=new_id
            ),
            starts_epoch=True,
        )
        self._submit(turn, held, self._settings.hold_ms)

    def add_partitions(
        self,
        turn: TransactionTurn,
        waiter: Waiter,
        request: TransactionPartitions,
        *,
        client_version: int,
        connection: int | None,
    ) -> None:
        """``connection`` is None for requests of brokers."""
        hold_ms = self._settings.hold_ms
        if connection is None:
            hold_ms = min(hold_ms, self._broker_hold_ms(request.transactional_id, turn.now_ms))
        held = HeldRequest(
            waiter=waiter,
            transactional_id=request.transactional_id,
            decide=lambda known, now_ms: add_partitions(
                known,
                request,
                now_ms,
                client_version=client_version,
                partitions_max=self._settings.partitions_max,
            ),
            connection=connection,
        )
        self._submit(turn, held, hold_ms)

    def _broker_hold_ms(self, transactional_id: str, now_ms: int) -> int:
        record = self._in_flight.get(transactional_id)
        changed = self.transactions.get(transactional_id) if record is None else record.value
        if changed is None:
            return BROKER_HOLD_MS
        # The clocks of nodes differ.
        return min(max(changed.updated_ms + BROKER_HOLD_MS - now_ms, 0), BROKER_HOLD_MS)

    def end_transaction(
        self,
        turn: TransactionTurn,
        waiter: Waiter,
        request: EndTransaction,
        *,
        connection: int,
        new_id: ProducerId | None,
    ) -> None:
        has_own_epoch = request.client_version >= EPOCH_BUMP_SINCE
        held = HeldRequest(
            waiter=waiter,
            transactional_id=request.transactional_id,
            decide=lambda known, now_ms: end_transaction(known, request, now_ms, new_id=new_id),
            connection=None if has_own_epoch else connection,
        )
        self._submit(turn, held, self._settings.hold_ms)

    def _submit(self, turn: TransactionTurn, request: HeldRequest, hold_ms: int) -> None:
        if self._attempt(turn, request):
            return
        waiting = self._held.get(request.transactional_id, [])
        if hold_ms == 0 or len(waiting) >= HELD_PER_ID_MAX:
            turn.reply(request.waiter, KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        self._held[request.transactional_id] = [*waiting, request]
        turn.set_deadline(_hold_key(request), hold_ms)

    def _attempt(self, turn: TransactionTurn, request: HeldRequest) -> bool:
        """Decide a request. False if it has to wait."""
        transactional_id = request.transactional_id
        if transactional_id in self._in_flight:
            return False
        try:
            outcome = request.decide(self.transactions.get(transactional_id), turn.now_ms)
            self._check_speaker(request)
        except KafkaError as error:
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                return False
            turn.reply(request.waiter, error)
            return True
        if outcome.value is not None:
            self._write(turn, transactional_id, outcome.value)
        if outcome.response is None:
            return False
        turn.reply(request.waiter, outcome.response)
        return True

    def _check_speaker(self, request: HeldRequest) -> None:
        """Refuse a valid request of an older connection: see the module's text."""
        if request.starts_epoch:
            self._speakers.pop(request.transactional_id, None)
        if request.connection is None:
            return
        if request.connection < self._speakers.get(request.transactional_id, -1):
            raise SupersededConnection
        self._speakers[request.transactional_id] = request.connection

    def _decide_held(self, turn: TransactionTurn, transactional_id: str) -> None:
        """Decide the held requests of an id again, in the order of their arrival."""
        waiting = self._held.pop(transactional_id, None)
        if waiting is None:
            return
        still = [request for request in waiting if not self._attempt(turn, request)]
        if still:
            self._held[transactional_id] = still
        for request in waiting:
            if request not in still:
                turn.cancel_deadline(_hold_key(request))

    def _release(self, turn: TransactionTurn, request: HeldRequest, error: KafkaError) -> None:
        turn.cancel_deadline(_hold_key(request))
        turn.reply(request.waiter, error)

    def _remove_held(self, transactional_id: str, waiter: Waiter) -> HeldRequest | None:
        waiting = self._held.get(transactional_id, [])
        found = next((request for request in waiting if request.waiter == waiter), None)
        if found is not None:
            waiting.remove(found)
            if not waiting:
                del self._held[transactional_id]
        return found

    def connection_lost(self, turn: TransactionTurn, subject: str, waiter: Waiter) -> None:
        found = self._remove_held(subject, waiter)
        if found is not None:
            turn.cancel_deadline(_hold_key(found))

    # Markers and time

    def markers_written(self, turn: TransactionTurn, markers: EndMarkers) -> None:
        """All partitions of a transaction have their marker, or their topics are deleted."""
        known = self.transactions.get(markers.transactional_id)
        if known is None or not known.status.is_prepared:
            return
        producer = (known.producer_id, known.producer_epoch)
        if producer == (markers.producer_id, markers.producer_epoch):
            self._complete(turn, markers.transactional_id)

    def _complete(self, turn: TransactionTurn, transactional_id: str) -> None:
        known = self.transactions.get(transactional_id)
        is_prepared = known is not None and known.status.is_prepared
        if known is not None and is_prepared and transactional_id not in self._in_flight:
            self._write(turn, transactional_id, complete(known, turn.now_ms))

    def expire(self, turn: TransactionTurn) -> None:
        """Handle the deadlines that have passed."""
        for _ in range(EXPIRED_PER_TURN_MAX):
            key = self.deadlines.pop_due(turn.now)
            if key is None:
                return
            timer, transactional_id, waiter = key
            match timer:
                case TransactionTimer.TIMEOUT:
                    self._timed_out(turn, transactional_id)
                case TransactionTimer.HOLD:
                    found = self._remove_held(transactional_id, Waiter(waiter))
                    if found is not None:
                        turn.reply(found.waiter, KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS))
                case TransactionTimer.COMPLETE:
                    self._complete(turn, transactional_id)

    def _timed_out(self, turn: TransactionTurn, transactional_id: str) -> None:
        known = self.transactions.get(transactional_id)
        if known is None or known.status is not TransactionStatus.ONGOING:
            return
        if transactional_id in self._in_flight:
            return  # the change in flight sets the timeout again, or ends the transaction
        self._write(turn, transactional_id, fence(known, turn.now_ms, self._server_version()))
        turn.note("transaction timed out", transactional_id, f"after {known.timeout_ms} ms")

    def expire_ids(self, turn: TransactionTurn, ids: Iterable[str]) -> None:
        """Delete ids that have not been used for a long time."""
        oldest_ms = turn.now_ms - self._settings.id_expiration_ms
        for transactional_id in ids:
            known = self.transactions.get(transactional_id)
            if known is None or not known.is_idle or transactional_id in self._in_flight:
                continue
            if known.updated_ms <= oldest_ms:
                self._write(turn, transactional_id, None)
                turn.note("transactional id expired", transactional_id)


def _hold_key(request: HeldRequest) -> TransactionTimerKey:
    return (TransactionTimer.HOLD, request.transactional_id, request.waiter)


def _timeout_left_ms(transaction: Transaction, now_ms: int) -> int:
    """Milliseconds until an open transaction times out. Clocks of nodes differ, so the result is
    never more than the timeout."""
    left = transaction.started_ms + transaction.timeout_ms - now_ms
    return min(max(left, 0), transaction.timeout_ms)
