"""DeleteRecords, versions 0 to 2: delete all records below an offset (KIP-107).

Behaviour:

* Offset -1 means the high watermark.
* The new log start offset is checkpointed before the response, so that a restart keeps it.
* The response waits until every live replica has deleted the records too.
"""

from __future__ import annotations

import asyncio

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.model.invariants import state_change
from riverrun.replication.partition import Partition
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import missing
from riverrun.server.services import BrokerServices
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


class _Deletion:
    """One partition of a request, until no live replica has the deleted records."""

    __slots__ = ("_partition", "done", "index", "result", "target")

    def __init__(self, index: int, partition: Partition | None, target: Offset) -> None:
        self.index = index
        self.target = target
        self._partition = partition
        self.done: asyncio.Future[ErrorCode] | None = None
        self.result = DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=target, error_code=ErrorCode.NONE
        )

    def fail(self, code: ErrorCode) -> None:
        self.result = DeleteRecordsPartitionResult(
            partition_index=self.index, low_watermark=-1, error_code=code
        )

    def wait(self) -> asyncio.Future[ErrorCode] | None:
        """A future that is done when all live followers have moved their log start offset."""
        partition = self._partition
        if partition is None or self.result.error_code or not partition.followers:
            return None
        self.done = asyncio.get_running_loop().create_future()
        partition.when_deleted(self.target, self._deleted)
        return self.done

    def _deleted(self, code: ErrorCode) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(code)

    def finish(self) -> None:
        """Stop waiting. A partition that is not done has timed out."""
        if self.done is None or self._partition is None:
            return
        self._partition.cancel_deletion(self._deleted)
        code = self.done.result() if self.done.done() else ErrorCode.REQUEST_TIMED_OUT
        if code is not ErrorCode.NONE:
            self.fail(code)


async def handle(
    services: BrokerServices, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    topics = [
        # Of a partition that is named twice, the last entry counts.
        (
            topic.name,
            [
                _delete(services, context, topic.name, wanted)
                for wanted in {p.partition_index: p for p in topic.partitions}.values()
            ],
        )
        for topic in request.topics
    ]
    deletions = [deletion for _, named in topics for deletion in named]
    # A restart must not bring deleted records back, so the new start is made durable first.
    if not await services.log_manager.checkpoint_start_offsets():
        for deletion in deletions:
            if deletion.result.error_code is ErrorCode.NONE:
                # A restart would bring the records back, so the client must retry.
                deletion.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    waits = [done for deletion in deletions if (done := deletion.wait()) is not None]
    try:
        if waits:
            await asyncio.wait(waits, timeout=max(request.timeout_ms, 0) / 1000)
    finally:
        for deletion in deletions:
            deletion.finish()
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=tuple(
            DeleteRecordsTopicResult(name=name, partitions=tuple(one.result for one in named))
            for name, named in topics
        ),
    )


def _delete(
    services: BrokerServices,
    context: RequestContext,
    topic: str,
    wanted: DeleteRecordsPartition,
) -> _Deletion:
    index = wanted.partition_index
    try:
        services.access.require(context, AclOperation.DELETE, ResourceType.TOPIC, topic)
        partition = services.replicas.find(topic, index)
        if partition is None:
            raise KafkaError(missing(services, topic, index))
        if partition.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition.check_leader(-1)
        log = partition.log
        if "delete" not in log.settings.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        target = log.high_watermark if wanted.offset == HIGH_WATERMARK else Offset(wanted.offset)
        if not 0 <= target <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        with state_change:
            log.delete_records_before(target)
            partition.start_moved()
    except KafkaError as error:
        refused = _Deletion(index, None, Offset(-1))
        refused.fail(error.code)
        return refused
    return _Deletion(index, partition, max(target, log.start_offset))
