"""Requests for offsets: whether the state of a group allows them, then the offsets themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.commits import (
    check_consumer_commit,
    check_consumer_fetch,
    check_consumer_transaction,
)
from riverrun.coordinator.consumer.groups import ConsumerGroups
from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.offsets import Offsets, check_commit, check_transactional_commit
from riverrun.coordinator.rebalance import restart_session
from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponseGroup

if TYPE_CHECKING:
    from riverrun.coordinator.log import ProducerTransaction
    from riverrun.coordinator.turn import Caller, Turn
    from riverrun.wire.messages.offset_commit_request import OffsetCommitRequest
    from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
    from riverrun.wire.messages.offset_delete_request import OffsetDeleteRequest
    from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse
    from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
    from riverrun.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest
    from riverrun.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse

GROUP_NOT_FOUND_SINCE: Final = 9
NO_MEMBER: Final[tuple[str | None, int]] = (None, -1)
"""The member id and epoch of a client that is not a member."""
COMMITTING_PRODUCERS_MAX: Final = 10_000
"""Producers of one shard whose connections are remembered; the oldest is dropped first."""


class CommittingConnections:
    """The newest connection on which each producer has committed offsets in a transaction.

    In transaction version 1 a commit that the network delayed may arrive in a later transaction of
    the same epoch, although its client has repeated it on a new connection. It would take offsets
    back, or commit those of an aborted transaction. ``TransactionShard`` has the same rule for the
    requests that it gets.
    """

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        """Epoch and connection by producer id, the last used ones at the end."""

    def check(self, transaction: ProducerTransaction, connection: int) -> None:
        """Raises SupersededConnection for a commit that is older than one before it."""
        producer_id, epoch = transaction.producer_id, transaction.producer_epoch
        newest = self._newest.get(producer_id)
        if newest is not None:
            if epoch < newest[0]:
                return  # the log refuses it
            if epoch == newest[0] and connection < newest[1]:
                raise SupersededConnection
            del self._newest[producer_id]
        self._newest[producer_id] = epoch, connection
        if len(self._newest) > COMMITTING_PRODUCERS_MAX:
            del self._newest[next(iter(self._newest))]


class OffsetRequests(Struct, frozen=True):
    """The groups and offsets of one shard, as requests for offsets see them."""

    groups: dict[str, ClassicGroup]
    consumers: ConsumerGroups
    offsets: Offsets
    view: GroupCatalog
    connections: CommittingConnections = field(default_factory=CommittingConnections)

    def commit(
        self, turn: Turn, caller: Caller, request: OffsetCommitRequest
    ) -> OffsetCommitResponse:
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None:
            check_consumer_commit(consumers, self.view, request, caller)
            return self.offsets.commit(turn, request)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id_or_member_epoch >= 0:
                is_late = caller.api_version >= GROUP_NOT_FOUND_SINCE
                code = ErrorCode.GROUP_ID_NOT_FOUND if is_late else ErrorCode.ILLEGAL_GENERATION
                raise KafkaError(code)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, turn.now_ms)
        check_commit(group, request)
        member = group.members.get(request.member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING):
            restart_session(turn, group, member)
        return self.offsets.commit(turn, request)

    def commit_in_transaction(
        self,
        turn: Turn,
        request: TxnOffsetCommitRequest,
        transaction: ProducerTransaction,
        connection: int | None,
    ) -> TxnOffsetCommitResponse:
        """``connection`` is None from transaction version 2 on."""
        self._check_transactional_commit(turn, request)
        if connection is not None:
            self.connections.check(transaction, connection)
        return self.offsets.commit_in_transaction(turn, request, transaction)

    def _check_transactional_commit(self, turn: Turn, request: TxnOffsetCommitRequest) -> None:
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None:
            check_consumer_transaction(consumers, self.view, request)
            return
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, turn.now_ms)
        check_transactional_commit(group, request)

    def fetch(
        self,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopics] | None,
        *,
        is_stable_only: bool,
        member: tuple[str | None, int],
    ) -> OffsetFetchResponseGroup:
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None:
            check_consumer_fetch(consumers, *member)
        found = self.offsets.fetch(group_id, topics, is_stable_only=is_stable_only)
        return OffsetFetchResponseGroup(group_id=group_id, topics=found)

    def delete(self, turn: Turn, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None:
            read = consumers.subscribed_topics()
            return self.offsets.delete(turn, read.__contains__, request)
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and not group.is_consumer:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return self.offsets.delete(turn, group.is_subscribed_to, request)
