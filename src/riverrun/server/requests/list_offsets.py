"""ListOffsets: the offsets at the start and end of a log, and by timestamp.

Behaviour:

* Nothing is tiered, so the local log is the whole log.

Versions 1 to 11:

* v4: leader epochs
* v7: max timestamp (KIP-734)
* v8: earliest local (KIP-405)
* v9: latest tiered
* v10: timeout
* v11: earliest pending upload (KIP-1023)
"""

from __future__ import annotations

from collections import Counter

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.ports.aio import Yielder
from riverrun.replication.partition import Partition
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import missing
from riverrun.server.services import BrokerServices
from riverrun.storage.segment.time_search import OffsetAt
from riverrun.wire.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest
from riverrun.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
KNOWN_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version with each special timestamp."""
CONSUMER = -1
DEBUGGING_CONSUMER = -2
OFFSET_NOT_AVAILABLE_FROM = 5


async def handle(
    services: BrokerServices, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    topics = []
    yielder = Yielder(services.clock)
    for topic in request.topics:
        results = []
        counts = Counter(wanted.partition_index for wanted in topic.partitions)
        for wanted in {p.partition_index: p for p in topic.partitions}.values():
            await yielder.step()
            try:
                services.access.require(
                    context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name
                )
                if counts[wanted.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                # Kafka checks the timestamp before it looks for the partition.
                if not _is_supported(wanted.timestamp, context.api_version):
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
                partition = services.replicas.find(topic.name, wanted.partition_index)
                if partition is None:
                    raise KafkaError(missing(services, topic.name, wanted.partition_index))
                results.append(
                    await _result(services, context.api_version, request, partition, wanted)
                )
            except KafkaError as error:
                results.append(
                    ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index, error_code=error.code
                    )
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(results)))
    return ListOffsetsResponse(topics=tuple(topics))


def _is_supported(timestamp: int, version: int) -> bool:
    return timestamp >= 0 or (timestamp in KNOWN_FROM and KNOWN_FROM[timestamp] <= version)


async def _result(
    services: BrokerServices,
    version: int,
    request: ListOffsetsRequest,
    partition: Partition,
    wanted: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    if request.replica_id != DEBUGGING_CONSUMER:  # it may read from any replica
        partition.check_leader(wanted.current_leader_epoch)
    found = await _find(services, partition, wanted.timestamp, request, version)
    if found is None:
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index, error_code=ErrorCode.NONE
        )
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


async def _find(
    services: BrokerServices,
    partition: Partition,
    timestamp: int,
    request: ListOffsetsRequest,
    version: int,
) -> OffsetAt | None:
    log = partition.log
    match timestamp:
        case -1:  # LATEST
            if request.replica_id != CONSUMER:
                end = log.end_offset
            else:
                _check_high_watermark(partition, version)
                end = log.last_stable_offset if request.isolation_level else log.high_watermark
            return OffsetAt(end, -1, partition.leader_epoch)
        case -2 | -4:  # EARLIEST, EARLIEST_LOCAL
            return OffsetAt(log.start_offset, -1, _epoch_at(partition, log.start_offset))
        case -5 | -6:  # LATEST_TIERED, EARLIEST_PENDING_UPLOAD
            return OffsetAt(Offset(-1), -1, LeaderEpoch(-1))
    found = await _in_thread(services, partition, timestamp)
    limit = log.last_stable_offset if request.isolation_level else log.high_watermark
    if found is not None and found.offset < limit:
        return found
    if request.replica_id == CONSUMER:
        _check_high_watermark(partition, version)
    return None


def _check_high_watermark(partition: Partition, version: int) -> None:
    """Fail while a new leader's high watermark may be below offsets that consumers have seen.

    With a lower end offset the consumers would go back (KIP-207).
    """
    begun = partition.epoch_start
    if begun is not None and partition.log.high_watermark < begun:
        if version >= OFFSET_NOT_AVAILABLE_FROM:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)


def _epoch_at(partition: Partition, offset: Offset) -> LeaderEpoch:
    return partition.log.epochs.epoch_at(offset)


async def _in_thread(
    services: BrokerServices, partition: Partition, timestamp: int
) -> OffsetAt | None:
    """The search may read cold files, so it runs in a thread."""
    log = partition.log
    search = (
        log.offset_of_max_timestamp
        if timestamp == MAX_TIMESTAMP
        else lambda: log.offset_for_timestamp(timestamp)
    )
    return await services.log_manager.in_thread(search)


def failed(
    request: ListOffsetsRequest, code: ErrorCode, message: str | None
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
