"""DeleteRecords: give up everything below an offset, for ever (KIP-107).

-1 means the high watermark. The new start of the log is checkpointed, so that a restart keeps it.
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.server.context import RequestContext
from riverrun.server.parts import Parts
from riverrun.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
)
from riverrun.wire.messages.delete_records_response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1


async def handle(
    parts: Parts, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    topics = tuple(
        DeleteRecordsTopicResult(
            name=topic.name,
            # A partition named twice is deleted and answered once, the last time.
            partitions=tuple(
                _delete(parts, topic.name, wanted)
                for wanted in {p.partition_index: p for p in topic.partitions}.values()
            ),
        )
        for topic in request.topics
    )
    # What we say is gone must stay gone: the answer waits until the new start is on the disk.
    if not await parts.log_runner.checkpoint_start_offsets():
        topics = tuple(topic.replaced(partitions=_unsaved(topic.partitions)) for topic in topics)
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


def _unsaved(
    partitions: tuple[DeleteRecordsPartitionResult, ...],
) -> tuple[DeleteRecordsPartitionResult, ...]:
    """Deleted for now, but a restart would bring it back: the client must ask again."""
    return tuple(
        partition
        if partition.error_code
        else partition.replaced(low_watermark=-1, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        for partition in partitions
    )


def _delete(
    parts: Parts, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    try:
        partition = parts.replicas.get(topic, wanted.partition_index)
        if partition.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition.check_leader(-1)
        log = partition.log
        if "delete" not in log.settings.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        target = log.high_watermark if wanted.offset == HIGH_WATERMARK else Offset(wanted.offset)
        if not 0 <= target <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_records_before(target)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=-1, error_code=error.code
        )
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index,
        low_watermark=log.start_offset,
        error_code=ErrorCode.NONE,
    )
