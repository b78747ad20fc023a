"""VerifyReplica request: a leader compares a new replica of a reassignment with its own log.

``buckets`` are consecutive ranges of offsets; the first begins at ``start_offset``. ``kind`` is 0
for a digest of batches and 1 for a digest of the last records of keys.
"""

from uuid import UUID

from msgspec import Struct

from riverrun.wire.layout import Field, Layouts


class ExpectedBucket(Struct, frozen=True, kw_only=True):
    end_offset: int
    digest: bytes


class VerifyReplicaRequest(Struct, frozen=True, kw_only=True):
    leader_id: int
    topic_id: UUID | None
    partition_index: int
    leader_epoch: int
    kind: int
    start_offset: int
    buckets: tuple[ExpectedBucket, ...]


MESSAGE = VerifyReplicaRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "ExpectedBucket": (
        Field("end_offset", "int64", 0, 0),
        Field("digest", "bytes", 0, 0),
    ),
    "VerifyReplicaRequest": (
        Field("leader_id", "int32", 0, 0),
        Field("topic_id", "uuid", 0, 0),
        Field("partition_index", "int32", 0, 0),
        Field("leader_epoch", "int32", 0, 0),
        Field("kind", "int8", 0, 0),
        Field("start_offset", "int64", 0, 0),
        Field("buckets", "[]ExpectedBucket", 0, 0),
    ),
}
