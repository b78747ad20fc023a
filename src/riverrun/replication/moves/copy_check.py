"""The side of the new replica in a comparison with the leader's log.

The copy is flushed and read from the disk. Where it differs from the leader's digests, or is
corrupt, the replica is damaged from there on: ``replication.repair`` truncates it and fetches the
records again. That is safe only because a new replica is not in the ISR.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Protocol

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.storage.digests.digest_task import DIGEST_BYTES, DigestBucket
from riverrun.storage.digests.digester import Digester, DigestRange, FilesChanged
from riverrun.storage.log import Log
from riverrun.wire.private.verify_replica_request import VerifyReplicaRequest
from riverrun.wire.private.verify_replica_response import VerifyReplicaResponse

BATCHES: Final = 0
BY_KEY: Final = 1
BUCKETS_MAX: Final = 1024


class FlushedLogs(Protocol):
    """The part of ``LogManager`` that is used here."""

    async def flushed(self, log: Log, offset: int) -> None: ...


class CopyChecker:
    """Compares the copies of one node with their leaders' digests."""

    def __init__(
        self, replicas: Replicas, node_id: NodeId, flushes: FlushedLogs, digester: Digester
    ) -> None:
        self._replicas = replicas
        self._node_id = node_id
        self._flushes = flushes
        self._digester = digester

    async def check(self, request: VerifyReplicaRequest) -> VerifyReplicaResponse:
        """Raises KafkaError if there is nothing to compare now."""
        bounds = _bounds(request)
        partition = self._find(request)
        source = partition.log
        if request.start_offset < source.start_offset:
            return VerifyReplicaResponse(
                error_code=ErrorCode.OFFSET_OUT_OF_RANGE, start_offset=source.start_offset
            )
        if source.end_offset < bounds[-1]:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "The copy is not complete")
        await self._flushes.flushed(source, bounds[-1])
        try:
            buckets = await self._digester.digest(
                source,
                DigestRange(request.start_offset, bounds[-1], bounds),
                is_read_back=True,
                is_by_key=request.kind == BY_KEY,
            )
        except FilesChanged as error:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(error)) from None
        if self._find(request) is not partition:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE)
        if request.start_offset < source.start_offset:
            return VerifyReplicaResponse(
                error_code=ErrorCode.OFFSET_OUT_OF_RANGE, start_offset=source.start_offset
            )
        found = _first_difference(request, buckets)
        if found is not None:
            differs_at, problem = found
            source.report_damage(problem, differs_at)
            return VerifyReplicaResponse(differs_at=differs_at, start_offset=source.start_offset)
        return VerifyReplicaResponse(start_offset=source.start_offset)

    def _find(self, request: VerifyReplicaRequest) -> Partition:
        """The copy, if it is a new replica of a reassignment under this leader."""
        partition = None
        if request.topic_id is not None:
            partition = self._replicas.find_by_id(request.topic_id, request.partition_index)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_epoch(request.leader_epoch)
        if (
            partition.leader != request.leader_id
            or self._node_id not in partition.image.adding
            or self._node_id in partition.isr
        ):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.log.is_corrupt or partition.log.is_offline:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "The copy is being repaired")
        return partition


def _bounds(request: VerifyReplicaRequest) -> tuple[int, ...]:
    bounds = tuple(bucket.end_offset for bucket in request.buckets)
    is_ascending = all(one < two for one, two in pairwise((request.start_offset, *bounds)))
    is_single = request.kind != BY_KEY or len(bounds) == 1
    if (
        request.kind not in (BATCHES, BY_KEY)
        or not 0 < len(bounds) <= BUCKETS_MAX
        or request.start_offset < 0
        or not is_ascending
        or not is_single
        or any(len(bucket.digest) != DIGEST_BYTES for bucket in request.buckets)
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The buckets are not valid")
    return bounds


def _first_difference(
    request: VerifyReplicaRequest, buckets: list[DigestBucket]
) -> tuple[int, str] | None:
    """The start of the first bucket that differs, and the problem."""
    start = request.start_offset
    for expected, found in zip(request.buckets, buckets, strict=False):
        if found.damage is not None:
            return start, found.damage
        if (found.end, found.digest) != (expected.end_offset, expected.digest):
            return start, f"offsets {start} to {expected.end_offset} differ from the leader's log"
        start = expected.end_offset
    if len(buckets) < len(request.buckets):
        return start, f"offsets from {start} on are missing"
    return None
