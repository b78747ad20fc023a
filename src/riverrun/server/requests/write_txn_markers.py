"""WriteTxnMarkers: end transactions in the partitions that this node leads.

Behaviour:

* Transaction coordinators send it, and administrators to abort a hanging transaction (KIP-664).
* The markers of one request for one partition are appended in one write.
* The response waits until all markers are committed, and until the group coordinator shows the
  effect of those in its partitions (KAFKA-17507).
* A request of version 1 transactions on an older connection than the newest one that delivered
  markers of the same producer is refused by closing it (``server/transactions``).

Versions 1 and 2:

* v2: the transaction version, by which the producer epoch is checked (KIP-1228)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

import structlog

from riverrun.coordinator.shard_kind import AppendTimedOut
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset, PartitionIndex
from riverrun.model.names import AUDIT_TOPIC, OFFSETS_TOPIC
from riverrun.ports.aio import run_together
from riverrun.replication.markers import append_markers
from riverrun.replication.partition import Partition
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import missing
from riverrun.server.dispatch.router import Refused
from riverrun.server.services import BrokerServices
from riverrun.server.transactions.broker_channels import LOCAL_CONNECTION
from riverrun.storage.markers import NewMarker, TransactionMarker
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from riverrun.wire.messages.write_txn_markers_response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

COMMIT_SECONDS_MAX: Final = 8.0
"""The coordinator waits for 10 seconds (``REQUEST_SECONDS_MAX`` of ``markers.py``). It has to learn
which partitions have not committed, because it sends their markers again."""

NOT_SERVING: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

PartitionKey = tuple[str, int]
Codes = list[ErrorCode]

log = structlog.get_logger("riverrun.transactions")


async def handle(
    services: BrokerServices, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    if not services.access.allows_cluster(context, AclOperation.ALTER):
        services.access.require_cluster(context, AclOperation.CLUSTER_ACTION)
    connection = context.connection_id
    if connection != LOCAL_CONNECTION and not services.marker_connections.admit(
        request.markers, connection
    ):
        raise Refused("superseded", "a newer connection has delivered markers of the producer")
    by_partition: dict[PartitionKey, dict[int, NewMarker]] = {}
    for place, marker in enumerate(request.markers):
        for topic in marker.topics:
            for index in topic.partition_indexes:
                by_partition.setdefault((topic.name, index), {})[place] = _new(marker)
    # All appends happen before the first wait, so the partitions are written in one turn.
    waits = {
        key: _write(services, key, list(markers.values())) for key, markers in by_partition.items()
    }
    codes: dict[tuple[PartitionKey, int], ErrorCode] = {}
    for key, written in zip(waits, await asyncio.gather(*waits.values()), strict=True):
        for place, code in zip(by_partition[key], written, strict=True):
            codes[key, place] = code
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=codes[(topic.name, index), place]
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for place, marker in enumerate(request.markers)
        )
    )


def failed(
    request: WriteTxnMarkersRequest, code: ErrorCode, message: str | None
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def _new(marker: WritableTxnMarker) -> NewMarker:
    return NewMarker(
        marker.producer_id,
        marker.producer_epoch,
        TransactionMarker(marker.transaction_result, marker.coordinator_epoch),
        marker.transaction_version,
    )


def _write(
    services: BrokerServices, key: PartitionKey, markers: Sequence[NewMarker]
) -> Awaitable[Codes]:
    """Append the markers of one partition now. The result follows when they are committed."""
    topic, index = key
    if topic == OFFSETS_TOPIC:
        return _end_in_groups(services, PartitionIndex(index), markers)
    partition = services.replicas.find(topic, index)
    try:
        if partition is None:
            raise KafkaError(missing(services, topic, index))
        if topic == AUDIT_TOPIC:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        appended = append_markers(partition, markers, now_ms=services.clock.now_ms())
    except KafkaError as error:
        return _refused(markers, error.code)
    except OSError as error:
        log.warning("markers not written", partition=f"{topic}-{index}", error=str(error))
        return _refused(markers, ErrorCode.KAFKA_STORAGE_ERROR)
    codes = [ErrorCode.NONE if error is None else error.code for error in appended.errors]
    return _committed(partition, appended.end, codes)


async def _end_in_groups(
    services: BrokerServices, index: PartitionIndex, markers: Sequence[NewMarker]
) -> Codes:
    async def end(marker: NewMarker) -> ErrorCode:
        try:
            async with asyncio.timeout(COMMIT_SECONDS_MAX):
                await services.groups.end_transaction(index, marker)
        except (TimeoutError, AppendTimedOut):
            # As in Kafka, although groups answer other requests with COORDINATOR_NOT_AVAILABLE.
            # The sender retries both codes, and recognizes slow partitions by this one.
            return ErrorCode.REQUEST_TIMED_OUT
        except KafkaError as error:
            # The coordinator of the transaction looks for the leader again.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in NOT_SERVING else error.code
        return ErrorCode.NONE

    # They are queued in one event-loop iteration, so they share a write.
    return await run_together([end(marker) for marker in markers])


async def _refused(markers: Sequence[NewMarker], code: ErrorCode) -> Codes:
    return [code] * len(markers)


def _committed(partition: Partition, end: Offset, codes: Codes) -> Awaitable[Codes]:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def committed(code: ErrorCode) -> None:
        if not done.done():
            done.set_result(code)

    if end > partition.log.high_watermark:
        partition.when_committed(end, committed)
    else:
        committed(ErrorCode.NONE)

    async def wait() -> Codes:
        try:
            async with asyncio.timeout(COMMIT_SECONDS_MAX):
                code = await done
        except TimeoutError:
            code = ErrorCode.REQUEST_TIMED_OUT
        finally:
            partition.cancel_produce(committed)
        if code is ErrorCode.NONE:
            return codes
        return [code if one is ErrorCode.NONE else one for one in codes]

    return wait()
