"""Produce: batches are appended as they are, straight from the connection's buffer.

Behaviour:

* Responses to acks 0 and 1, and to acks=all without followers to wait for, need no task and no
  future. Otherwise one object waits for all partitions of the request.
* With acks=0 an error closes the connection, as in Kafka.
* The first batch of a transaction in a partition waits until the transaction coordinator has
  confirmed it; see ``server/transactions/transactional_produce.py``.

Versions 3 to 13; 0 to 2 are advertised and refused:

* v3: batches of today's format
* v5: log start offset
* v8: errors of single records (KIP-467)
* v9: flexible
* v10: the leader in the response (KIP-951)
* v11: TRANSACTION_ABORTABLE (KIP-890)
* v12: adds partitions to the transaction (KIP-890)
* v13: topic ids
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.model.names import AUDIT_TOPIC
from riverrun.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
)
from riverrun.records.compression import Compression
from riverrun.records.validate import InvalidRecord
from riverrun.replication.partition import Partition
from riverrun.replication.verification_attempts import Attempt, append_transactional
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import endpoints_of, leader_of, missing, topic_name
from riverrun.server.dispatch.router import Refused
from riverrun.server.transactions.transactional_produce import Attempts
from riverrun.server.transactions.verification import NotVerified, produce_error
from riverrun.wire.produce import (
    NO_RECORDS,
    SERVED_FROM,
    ProduceCall,
    ProducePartition,
    ProduceResult,
    encode_produce_response,
    parse_produce,
)

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices

log = structlog.get_logger("riverrun.produce")

ACKS_NONE = 0
ACKS_ALL = -1
ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that may write to internal topics, as in Kafka."""
LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT = 8, 16, 22
ZSTD_FROM = 7
LEADERS_FROM = 10
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
RECORD_ERRORS = (
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
)


def handle_frame(
    services: BrokerServices, context: RequestContext, buffer: memoryview, at: int
) -> bytes | Awaitable[bytes | None] | None:
    """Append every batch. Returns the response, an awaitable of it, or None for acks=0."""
    version = context.api_version
    call = parse_produce(buffer, at, version)
    refusal = _refusal(call, version)
    if refusal is not None:
        return _refuse_all(version, call, refusal)
    if call.transactional_id is None:
        return _append_all(services, context, call, buffer, None)
    if services.access.is_enabled:
        denied = _denied(services, context, call)
        if denied is not None:
            return denied
    try:
        return services.transactional_produces.submit(
            services.replicas,
            version,
            call,
            buffer,
            lambda kept, attempts: _append_all(services, context, call, kept, attempts),
        )
    except KafkaError as error:
        return _refuse_all(version, call, (error.code, error.message))


def _denied(services: BrokerServices, context: RequestContext, call: ProduceCall) -> bytes | None:
    """The response to a transactional request without the rights for it; None if it has them.

    A partition is added to the transaction before its batch is appended, so the rights are checked
    first. One missing right refuses the request, because the transaction must be aborted anyway.
    """
    access, version = services.access, context.api_version
    id_ = call.transactional_id or ""
    if not access.permits(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, id_):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _refuse_all(version, call, (code, None))
    results = [
        ProduceResult(
            wanted.topic,
            wanted.partition,
            ErrorCode.OPERATION_NOT_ATTEMPTED
            if _may_write(services, context, wanted.topic)
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
        for wanted in call.partitions
    ]
    if all(one.error_code == ErrorCode.OPERATION_NOT_ATTEMPTED for one in results):
        return None
    if call.acks == ACKS_NONE:
        _check_unacknowledged(results)
    return encode_produce_response(version, results)


def _may_write(services: BrokerServices, context: RequestContext, topic: str | UUID) -> bool:
    """Unknown ids are not denied: they get an error that says so."""
    name = topic_name(services, topic)
    return name is None or services.access.permits(
        context, AclOperation.WRITE, ResourceType.TOPIC, name
    )


def _append_all(
    services: BrokerServices,
    context: RequestContext,
    call: ProduceCall,
    buffer: memoryview,
    attempts: Attempts | None,
) -> bytes | asyncio.Future[bytes] | None:
    """``attempts`` are those of a request with a transactional id."""
    now_ms = services.clock.now_ms()
    results: list[ProduceResult] = []
    waits: list[tuple[int, Partition, Offset]] = []
    is_refused = False
    for wanted in call.partitions:
        result, partition, end = _append(
            services, context, call.acks, wanted, buffer, now_ms, attempts
        )
        if partition is None:
            is_refused = True
        elif end > partition.log.high_watermark and _must_wait(call.acks, partition, end):
            waits.append((len(results), partition, end))
        results.append(result)
    if call.acks == ACKS_NONE:
        _check_unacknowledged(results)
        return None
    if waits:
        return _ProduceWait(services, context, call, results, waits).future
    if is_refused:
        return _encode(services, context, results)
    return encode_produce_response(context.api_version, results)


def _must_wait(acks: int, partition: Partition, end: Offset) -> bool:
    """acks=all waits for the in-sync replicas; acks=1 for the leader's flush, if configured."""
    if acks != 1:
        return acks == ACKS_ALL
    log = partition.log
    return log.settings.flush_before_ack and end > log.flushed_offset


def _encode(
    services: BrokerServices, context: RequestContext, results: list[ProduceResult]
) -> bytes:
    """The response, with the leaders of partitions that this node does not lead (KIP-951)."""
    version = context.api_version
    moved = [place for place, result in enumerate(results) if result.error_code == NOT_LEADER]
    if not moved or version < LEADERS_FROM:
        return encode_produce_response(version, results)
    for place in moved:
        result = results[place]
        leader = leader_of(services, result.topic, result.partition)
        results[place] = result._replace(leader=leader)
    return encode_produce_response(
        version,
        results,
        node_endpoints=endpoints_of(
            services, (results[place].leader for place in moved), context.listener
        ),
    )


def _refusal(call: ProduceCall, version: int) -> tuple[ErrorCode, str | None] | None:
    """The error of the request as a whole."""
    if version < SERVED_FROM:
        return ErrorCode.UNSUPPORTED_VERSION, None
    if call.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS, None
    return None


def _refuse_all(
    version: int, call: ProduceCall, refusal: tuple[ErrorCode, str | None]
) -> bytes | None:
    if call.acks == ACKS_NONE:
        raise Refused("unanswered", f"produce with acks=0 refused: {refusal[0].name}")
    results = [
        ProduceResult(w.topic, w.partition, refusal[0], error_message=refusal[1])
        for w in call.partitions
    ]
    return encode_produce_response(version, results)


def _append(
    services: BrokerServices,
    context: RequestContext,
    acks: int,
    wanted: ProducePartition,
    buffer: memoryview,
    now_ms: int,
    attempts: Attempts | None,
) -> tuple[ProduceResult, Partition | None, Offset]:
    """Append one batch. Returns the result, the partition, and the end offset to commit."""
    topic, index = wanted.topic, wanted.partition
    partition = None
    try:
        if services.access.is_enabled and not _may_write(services, context, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if isinstance(topic, str):
            partition = services.replicas.find(topic, index)
        else:
            partition = services.replicas.find_by_id(topic, index)
        if partition is None:
            raise KafkaError(missing(services, topic, index))
        if wanted.start == NO_RECORDS:
            raise KafkaError(ErrorCode.INVALID_RECORD, "The request has no records.")
        if partition.is_internal and (
            context.client_id != ADMIN_CLIENT_ID or partition.name.topic == AUDIT_TOPIC
        ):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        attributes = 0
        if wanted.end - wanted.start >= HEADER_BYTES:
            attributes = buffer[wanted.start + ATTRIBUTES_AT]
        batch = buffer[wanted.start : wanted.end]
        if attributes & COMPRESSION_MASK == Compression.ZSTD:
            _check_zstd(context.api_version)
        if attributes & TRANSACTIONAL_BIT:
            attempt = _verified(attempts, partition, context.api_version)
            appended = append_transactional(partition, batch, attempt, acks=acks, now_ms=now_ms)
        else:
            appended = partition.append(batch, acks=acks, now_ms=now_ms)
    except (KafkaError, OSError) as error:
        batch = buffer[wanted.start : wanted.end]
        if partition is not None:
            services.topics_traffic[partition.name.topic].produce_failures += 1
            if isinstance(error, OSError):
                _warn(services, partition, error)
        return _failed(wanted, partition, batch, error), None, Offset(0)
    traffic = services.topics_traffic[partition.name.topic]
    traffic.produce_requests += 1
    traffic.records_in += appended.last_offset + 1 - appended.base_offset
    traffic.bytes_in += wanted.end - wanted.start
    result = ProduceResult(
        topic,
        index,
        ErrorCode.NONE,
        appended.base_offset,
        appended.append_time_ms,
        partition.log.start_offset,
    )
    return result, partition, Offset(appended.last_offset + 1)


def _failed(
    wanted: ProducePartition, partition: Partition | None, batch: memoryview, error: Exception
) -> ProduceResult:
    """The result for a batch that was not appended."""
    code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    message: str | None = str(error)
    if isinstance(error, KafkaError):
        code, message = error.code, error.message
    return ProduceResult(
        wanted.topic,
        wanted.partition,
        code,
        log_start_offset=-1
        if isinstance(error, NotVerified)
        else _start_offset(partition, code, batch),
        record_errors=error.record_errors if isinstance(error, InvalidRecord) else (),
        error_message=message,
    )


def _warn(services: BrokerServices, partition: Partition, error: OSError) -> None:
    """Log a failed append. Producers retry many times a second, so the rate is limited."""
    if services.append_warnings.admit(str(partition.name)) is not None:
        log.warning("append failed", partition=str(partition.name), error=str(error))


def _verified(attempts: Attempts | None, partition: Partition, version: int) -> Attempt | None:
    """The attempt of a transactional batch; None if it needed none. Raises its error."""
    if attempts is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Transactional records need a request with a transactional id.",
        )
    attempt = attempts.get(partition.name)
    if attempt is not None:
        error = produce_error(attempt.outcome, version)
        if error is not None:
            raise error
    return attempt


def _check_zstd(version: int) -> None:
    if version < ZSTD_FROM:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )


def _start_offset(partition: Partition | None, code: ErrorCode, batch: memoryview) -> int:
    """Kafka sends the log start offset if the records of a batch are invalid, not its framing."""
    is_framed = (
        len(batch) >= HEADER_BYTES
        and batch[MAGIC_AT] == MAGIC
        and int.from_bytes(batch[LENGTH_AT : LENGTH_AT + 4], "big") + OVERHEAD_BYTES == len(batch)
    )
    if partition is not None and code in RECORD_ERRORS and is_framed:
        return partition.log.start_offset
    return -1


def _check_unacknowledged(results: list[ProduceResult]) -> None:
    """With acks=0 there is no response, so an error closes the connection, as in Kafka."""
    for result in results:
        if result.error_code:
            code = ErrorCode(result.error_code).name
            raise Refused("unanswered", f"produce with acks=0 failed on {result.topic}: {code}")


class _ProduceWait:
    """A request that waits until all its batches are committed, or its time is up."""

    __slots__ = ("_callbacks", "_context", "_left", "_results", "_services", "_timer", "future")

    def __init__(
        self,
        services: BrokerServices,
        context: RequestContext,
        call: ProduceCall,
        results: list[ProduceResult],
        waits: list[tuple[int, Partition, Offset]],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bytes] = loop.create_future()
        self._services = services
        self._context = context
        self._results = results
        self._left = len(waits)
        self._callbacks: dict[int, tuple[Partition, _Committed]] = {}
        for place, partition, end in waits:
            committed = _Committed(self, place)
            self._callbacks[place] = (partition, committed)
            if call.acks == ACKS_ALL:
                partition.when_committed(end, committed)
            else:
                partition.when_flushed(end, committed)
        self._timer = loop.call_later(max(call.timeout_ms, 0) / 1000, self._expire)
        self.future.add_done_callback(self._finished)

    def committed(self, place: int, code: ErrorCode) -> None:
        if self._callbacks.pop(place, None) is None:
            return
        if code is not ErrorCode.NONE:
            before = self._results[place]
            self._results[place] = ProduceResult(before.topic, before.partition, code)
        self._left -= 1
        if self._left == 0 and not self.future.done():
            self.future.set_result(_encode(self._services, self._context, self._results))

    def _expire(self) -> None:
        for place, (partition, committed) in list(self._callbacks.items()):
            partition.cancel_produce(committed)
            self.committed(place, ErrorCode.REQUEST_TIMED_OUT)

    def _finished(self, _: asyncio.Future[bytes]) -> None:
        """The response is known, or the client is gone."""
        self._timer.cancel()
        for partition, committed in self._callbacks.values():
            partition.cancel_produce(committed)
        self._callbacks.clear()


class _Committed:
    """Called by the partition. An object, because cancelling the wait needs its identity."""

    __slots__ = ("_place", "_wait")

    def __init__(self, wait: _ProduceWait, place: int) -> None:
        self._wait = wait
        self._place = place

    def __call__(self, code: ErrorCode) -> None:
        self._wait.committed(self._place, code)
