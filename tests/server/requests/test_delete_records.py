"""DeleteRecords: the new log start offset is durable before the response."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from riverrun.metadata.image import DIRECTORY_UNASSIGNED, PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.model.invariants import InvariantViolation
from riverrun.replication.partition import Partition
from riverrun.server.requests.delete_records import handle
from riverrun.storage.settings import LogSettings
from riverrun.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.server.access import OPEN_ACCESS
from tests.storage.machines import NOW_MS, TOPIC_ID, Machine, batch

ME = NodeId(1)


class Replicas:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def find(self, topic: str, index: int) -> Partition:
        return self._partition


class Runner:
    def __init__(self, *, has_room: bool) -> None:
        self._has_room = has_room

    async def checkpoint_start_offsets(self) -> bool:
        return self._has_room


def _fail(_: int) -> None:
    raise AssertionError("epochs went back")


def delete(offset: int, *, has_room: bool, is_broken: bool = False) -> tuple[ErrorCode, int]:
    partition = Partition(Machine().load(LogSettings())[1], TOPIC_ID, ME, lambda _: None)
    partition.apply(
        PartitionImage(
            replicas=(ME,),
            isr=(ME,),
            leader=ME,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
            directories=(DIRECTORY_UNASSIGNED,),
        )
    )
    for value in (b"a", b"b", b"c"):
        partition.append(bytearray(batch(value)), acks=1, now_ms=NOW_MS)
    if is_broken:
        partition.log.epochs = cast(Any, SimpleNamespace(truncate_start=_fail))
    services = SimpleNamespace(
        replicas=Replicas(partition), log_manager=Runner(has_room=has_room), access=OPEN_ACCESS
    )
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name="topic", partitions=(wanted,)),), timeout_ms=1000
    )
    response = asyncio.run(handle(cast(Any, services), cast(Any, None), request))
    result = response.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_response_has_the_new_log_start_offset() -> None:
    assert delete(2, has_room=True) == (ErrorCode.NONE, 2)
    assert delete(-1, has_room=True) == (ErrorCode.NONE, 3)


def test_failed_checkpoint_is_an_error() -> None:
    assert delete(2, has_room=False) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_offset_above_the_high_watermark_is_refused() -> None:
    assert delete(4, has_room=True) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_assertion_that_fails_while_the_start_moves_stops_the_node() -> None:
    with pytest.raises(InvariantViolation, match="epochs went back"):
        delete(2, has_room=True, is_broken=True)
