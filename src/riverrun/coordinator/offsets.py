"""Committed offsets of the groups of one partition of ``__consumer_offsets``.

Only ``replay`` changes them, when a record is committed, so readers see durable offsets only.
Offsets of open transactions are pending until their marker. Offset records in flight are counted
separately, because deleting a group must delete them too. This module also decides whether the
state of a group allows a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.log import InTransaction, ProducerTransaction
from riverrun.coordinator.pending_offsets import PendingOffsets
from riverrun.coordinator.records import (
    TEXT_BYTES_MAX,
    CommittedOffset,
    CoordinatorRecord,
    OffsetRecord,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from riverrun.wire.messages.offset_delete_response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from riverrun.wire.messages.offset_fetch_response import (
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from riverrun.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from riverrun.coordinator.groups.offset_expiry import OffsetExpiry
    from riverrun.coordinator.turn import Turn
    from riverrun.wire.messages.offset_commit_request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
    )
    from riverrun.wire.messages.offset_delete_request import OffsetDeleteRequest
    from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
    from riverrun.wire.messages.txn_offset_commit_request import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
    )

TopicOffsets = dict[int, CommittedOffset]
GroupOffsets = dict[str, TopicOffsets]


class CommittedPartition(NamedTuple):
    """The committed offset of a group in one partition."""

    group: str
    topic: str
    partition: int
    offset: int


class Offsets:
    """Committed offsets by group, topic and partition."""

    def __init__(self) -> None:
        self.by_group: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()
        self.count = 0
        self._in_flight: dict[str, dict[tuple[str, int], int]] = {}

    # Committed offsets

    def replay(self, record: OffsetRecord) -> None:
        key = (record.topic, record.partition)
        if record.value is None:
            self._remove(record.group_id, *key)
            self.pending.drop(record.group_id, key)
            return
        self._put(record.group_id, *key, record.value)
        self.pending.supersede(record.group_id, key)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> list[str]:
        """Apply a marker. Returns the groups whose pending offsets it ended."""
        ended = self.pending.end(producer_id)
        for group_id, topic, partition, value, position in ended:
            if is_commit and value is not None:
                self._put(group_id, topic, partition, value)
                self.pending.supersede(group_id, (topic, partition), position)
        return list(dict.fromkeys(one.group_id for one in ended))

    def _put(self, group_id: str, topic: str, partition: int, value: CommittedOffset) -> None:
        partitions = self.by_group.setdefault(group_id, {}).setdefault(topic, {})
        self.count += partition not in partitions
        partitions[partition] = value

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.by_group.get(group_id)
        if topics is None or partition not in topics.get(topic, ()):
            return
        del topics[topic][partition]
        self.count -= 1
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.by_group[group_id]

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.by_group.get(group_id, {}).get(topic, {}).get(partition)

    def __iter__(self) -> Iterator[CommittedPartition]:
        for group, topics in self.by_group.items():
            for topic, partitions in topics.items():
                for partition, committed in partitions.items():
                    yield CommittedPartition(group, topic, partition, committed.offset)

    # Records in flight

    def sent(self, record: OffsetRecord) -> None:
        keys = self._in_flight.setdefault(record.group_id, {})
        key = (record.topic, record.partition)
        keys[key] = keys.get(key, 0) + 1

    def settled(self, record: OffsetRecord) -> None:
        keys = self._in_flight[record.group_id]
        key = (record.topic, record.partition)
        keys[key] -= 1
        if not keys[key]:
            del keys[key]
            if not keys:
                del self._in_flight[record.group_id]

    def is_in_flight(self, group_id: str) -> bool:
        return group_id in self._in_flight

    def keys_of(self, group_id: str) -> list[tuple[str, int]]:
        """All partitions with committed or pending offsets, or offset records in flight."""
        keys = dict.fromkeys(
            (topic, partition)
            for topic, partitions in self.by_group.get(group_id, {}).items()
            for partition in partitions
        )
        keys.update(dict.fromkeys(self.pending.keys_of(group_id)))
        keys.update(dict.fromkeys(self._in_flight.get(group_id, ())))
        return list(keys)

    def _has(self, group_id: str, topic: str, partition: int) -> bool:
        if self.get(group_id, topic, partition) is not None:
            return True
        if self.pending.has(group_id, topic, partition):
            return True
        return (topic, partition) in self._in_flight.get(group_id, ())

    # Requests

    def commit(self, turn: Turn, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Add the records of a commit that passed ``check_commit``."""
        retention = request.retention_time_ms
        expires = None if retention == -1 else turn.now_ms + retention
        limit = turn.settings.offset_metadata_bytes_max
        topics = []
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                if _fits(part.committed_metadata, limit):
                    code = ErrorCode.NONE
                    value = _committed(part, turn.now_ms, expires, topic.topic_id)
                    turn.records.append(
                        OffsetRecord(request.group_id, topic.name, part.partition_index, value)
                    )
                results.append(
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=code
                    )
                )
            topics.append(
                OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=tuple(results)
                )
            )
        return OffsetCommitResponse(topics=tuple(topics))

    def commit_in_transaction(
        self, turn: Turn, request: TxnOffsetCommitRequest, transaction: ProducerTransaction
    ) -> TxnOffsetCommitResponse:
        """Add the records of a commit that is part of a transaction."""
        limit = turn.settings.offset_metadata_bytes_max
        topics = []
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                if _fits(part.committed_metadata, limit):
                    code = ErrorCode.NONE
                    value = _committed(part, turn.now_ms, None, None)
                    record = OffsetRecord(request.group_id, topic.name, part.partition_index, value)
                    turn.records.append(InTransaction(transaction, record))
                results.append(
                    TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=code
                    )
                )
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(results)))
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=tuple(topics))

    def fetch(
        self,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopics] | None,
        *,
        is_stable_only: bool = False,
    ) -> tuple[OffsetFetchResponseTopics, ...]:
        """Committed offsets of the given partitions, or of all; -1 where there is none.

        With ``is_stable_only`` a partition whose offset an open transaction may change has an error
        instead (KIP-447).
        """
        known = self.by_group.get(group_id, {})
        unstable = dict.fromkeys(self.pending.keys_of(group_id)) if is_stable_only else {}
        if topics is None:
            return tuple(
                OffsetFetchResponseTopics(
                    name=name,
                    partitions=tuple(
                        _unstable(p) if (name, p) in unstable else _fetched(p, value)
                        for p, value in partitions.items()
                    ),
                )
                for name, partitions in known.items()
            )
        return tuple(
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    _unstable(index)
                    if (topic.name, index) in unstable
                    else _fetched(
                        index, _of_topic(known.get(topic.name, {}).get(index), topic.topic_id)
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in topics
        )

    def delete(
        self, turn: Turn, is_subscribed_to: Callable[[str], bool], request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        """OffsetDelete; refused for topics that the group subscribes to."""
        topics = []
        for topic in request.topics:
            is_read = is_subscribed_to(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
            results = []
            for part in topic.partitions:
                index = part.partition_index
                if not is_read and self._has(request.group_id, topic.name, index):
                    turn.records.append(OffsetRecord(request.group_id, topic.name, index, None))
                results.append(
                    OffsetDeleteResponsePartition(partition_index=index, error_code=code)
                )
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(results)))
        return OffsetDeleteResponse(
            error_code=ErrorCode.NONE, throttle_time_ms=0, topics=tuple(topics)
        )

    def delete_all(self, turn: Turn, group_id: str) -> None:
        for topic, partition in self.keys_of(group_id):
            turn.records.append(OffsetRecord(group_id, topic, partition, None))

    def delete_topics(self, turn: Turn, names: Mapping[str, None]) -> None:
        """Delete the offsets of deleted topics in all groups."""
        found: dict[tuple[str, str, int], None] = {}
        for group_id, topics in self.by_group.items():
            for topic in names:
                for partition in topics.get(topic, ()):
                    found[group_id, topic, partition] = None
        for group_id, (topic, partition) in self.pending.of_topics(names):
            found[group_id, topic, partition] = None
        for group_id, keys in self._in_flight.items():
            for topic, partition in keys:
                if topic in names:
                    found[group_id, topic, partition] = None
        turn.records += [OffsetRecord(*key, None) for key in found]

    def expire(self, turn: Turn, group: OffsetExpiry) -> bool:
        """Delete the expired offsets of a group; True if the group has none left."""
        if self.is_in_flight(group.group_id):
            return False
        known = self.by_group.get(group.group_id)
        is_all = not self.pending.has_group(group.group_id)
        if known is None:
            return is_all
        if not group.may_expire:
            return False
        for topic, partition, value in _each(known):
            if self.pending.has(group.group_id, topic, partition):
                continue  # its transaction may be committed yet
            if not group.is_subscribed_to(topic) and group.has_expired(turn, value):
                turn.records.append(OffsetRecord(group.group_id, topic, partition, None))
            else:
                is_all = False
        return is_all


def check_commit(group: ClassicGroup, request: OffsetCommitRequest) -> None:
    """Check that the client may commit: it is a member of this generation, or the group is
    empty."""
    generation = request.generation_id_or_member_epoch
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or request.member_id or request.group_instance_id is not None:
        group.check_member(request.member_id, request.group_instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    elif group.state is not GroupState.EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is GroupState.COMPLETING:
        # The member has joined and waits for its assignment.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)


def check_transactional_commit(group: ClassicGroup, request: TxnOffsetCommitRequest) -> None:
    """Check a commit in a transaction. Without a member id it is not checked (KIP-447)."""
    generation = request.generation_id
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or request.member_id or request.group_instance_id is not None:
        group.check_member(request.member_id, request.group_instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _fits(metadata: str | None, limit: int) -> bool:
    if metadata is None or len(metadata) <= min(limit, TEXT_BYTES_MAX // 4):
        return True
    return len(metadata) <= limit and len(metadata.encode()) <= TEXT_BYTES_MAX


def _committed(
    part: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now_ms: int,
    expires: int | None,
    topic_id: UUID | None,
) -> CommittedOffset:
    return CommittedOffset(
        part.committed_offset,
        part.committed_leader_epoch,
        part.committed_metadata or "",
        now_ms,
        expires,
        topic_id,
    )


def _of_topic(value: CommittedOffset | None, topic_id: UUID | None) -> CommittedOffset | None:
    """The offset, unless it was committed for a deleted topic of the same name."""
    if value is None or topic_id is None or value.topic_id is None or value.topic_id == topic_id:
        return value
    return None


def _fetched(partition: int, value: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=-1 if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=ErrorCode.NONE,
    )


def _unstable(partition: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=-1,
        metadata="",
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )


def _each(topics: GroupOffsets) -> Iterator[tuple[str, int, CommittedOffset]]:
    for topic, partitions in topics.items():
        for partition, value in partitions.items():
            yield topic, partition, value


def offset_of(record: CoordinatorRecord) -> OffsetRecord | None:
    """The offset in a record, in a transaction or not."""
    if isinstance(record, InTransaction):
        record = record.record
    return record if isinstance(record, OffsetRecord) else None
