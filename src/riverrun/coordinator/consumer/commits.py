"""Whether a client may commit or fetch offsets of a group of the consumer protocol.

A commit carries the member epoch. It is accepted for a partition if the member has held the
partition since that epoch (KIP-1251): the epoch of a commit in flight may be older than the
member's, but a member that lost a partition and got it back must not commit an offset of before.
The member id decides alone: a static member has another one after each restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.records import TopicSlot
from riverrun.coordinator.consumer.state import EpochGroup, EpochMember, MemberRequest
from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Caller
    from riverrun.wire.messages.offset_commit_request import (
        OffsetCommitRequest,
        OffsetCommitRequestTopic,
    )
    from riverrun.wire.messages.txn_offset_commit_request import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestTopic,
    )

EPOCH_SINCE: Final = 9
"""The first version of OffsetCommit whose clients know the errors of the consumer protocol."""


def check_consumer_commit(
    group: EpochGroup, view: GroupCatalog, request: OffsetCommitRequest, caller: Caller
) -> None:
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and group.is_empty:
        return
    member = group.member(request.member_id)
    if caller.api_version < EPOCH_SINCE and not member.uses_classic_protocol:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"OffsetCommit version {caller.api_version} is not supported for members of the "
            "consumer protocol.",
        )
    _check_epoch(member, epoch, _slots(view, request.topics))
    group.check_connection(member.member_id, MemberRequest.COMMIT, caller.connection)


def check_consumer_transaction(
    group: EpochGroup, view: GroupCatalog, request: TxnOffsetCommitRequest
) -> None:
    """Check a commit in a transaction. Without a member id it is not checked (KIP-447)."""
    epoch = request.generation_id
    if epoch < 0 and group.is_empty:
        return
    if epoch < 0 and not request.member_id and request.group_instance_id is None:
        return
    member = group.member(request.member_id)
    try:
        _check_epoch(member, epoch, _slots(view, request.topics))
    except KafkaError as error:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from None


def check_consumer_fetch(group: EpochGroup, member_id: str | None, epoch: int) -> None:
    """Check the member of an OffsetFetch. Without a member it is not checked."""
    if member_id is None and epoch < 0:
        return
    member = group.member(member_id or "")
    if epoch != member.current.epoch:
        raise _stale(member, epoch)


def _slots(
    view: GroupCatalog,
    topics: Iterable[OffsetCommitRequestTopic] | Iterable[TxnOffsetCommitRequestTopic],
) -> list[TopicSlot | None]:
    return [
        None if (known := view.topic(topic.name)) is None else (known.id, part.partition_index)
        for topic in topics
        for part in topic.partitions
    ]


def _check_epoch(member: EpochMember, epoch: int, slots: Iterable[TopicSlot | None]) -> None:
    current = member.current
    if epoch == current.epoch:
        return
    for slot in slots:
        since = None if slot is None else current.assigned.get(slot, current.revoking.get(slot))
        if since is None or not since <= epoch < current.epoch:
            raise _stale(member, epoch)


def _stale(member: EpochMember, epoch: int) -> KafkaError:
    is_classic = member.uses_classic_protocol
    code = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
    return KafkaError(
        code, f"The received member epoch {epoch} does not match {member.current.epoch}."
    )
