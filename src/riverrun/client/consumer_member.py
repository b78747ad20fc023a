"""A member of a classic consumer group: joins, sends heartbeats, commits offsets and leaves.

It uses the protocol that all clients share (range and roundrobin, eager), so it can be in a group
with any of them, also as leader. A ``Fetcher`` reads the records on another connection: responses
arrive in order, and a heartbeat must not wait behind a long poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from riverrun.client.assignors import ASSIGNORS, Subscriber
from riverrun.client.consumer_protocol import (
    Assignment,
    NotConsumerProtocol,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from riverrun.client.offsets import commit_offsets
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from riverrun.wire.messages.sync_group_request import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

PROTOCOL_TYPE = "consumer"
SESSION_TIMEOUT_MS = 10_000
REBALANCE_TIMEOUT_MS = 60_000
HEARTBEAT_S = 1.0
TOPICS_CHECK_S = 10.0
LEAVE_S_MAX = 3.0
RESPONSE_S_MAX = 10.0
ROUNDS_MAX = 100

_LOST_MEMBERSHIP = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_JOIN_AGAIN = _LOST_MEMBERSHIP | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED}


class ConsumerMember:
    """``join``, read the partitions of ``assignment`` until ``must_rejoin`` is set, and join again.

    The caller runs ``keep_alive`` as a task. The pool must not be shared with other users.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        group: str,
        topics: Sequence[str],
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
    ) -> None:
        self._pool = pool
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._group = group
        self._topics = tuple(topics)
        self._topics_of_group: tuple[str, ...] = ()
        self._counts: Mapping[str, int] = {}
        self._is_leader = False
        self._is_joining = False
        self.member_id = ""
        self.generation = -1
        self.assignment: Assignment = {}
        self.must_rejoin = asyncio.Event()

    async def join(self) -> Assignment:
        """Take part in rebalances until there is an assignment."""
        self._is_joining = True
        for _ in range(ROUNDS_MAX):
            joined = await self._join_once()
            if joined is None:
                continue
            synced = await self._sync_once(joined)
            if synced is None or self.generation < 0:
                continue  # Also if a heartbeat has reported meanwhile that the membership is lost.
            self.assignment = read_assignment(synced.assignment)
            self.must_rejoin.clear()
            self._is_joining = False
            return self.assignment
        text = f"group {self._group} has no assignment after {ROUNDS_MAX} rebalances"
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, text)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to other topics, with the next rebalance."""
        self._topics = tuple(topics)
        self.must_rejoin.set()

    async def keep_alive(self) -> None:
        """Send heartbeats until cancelled. The leader also checks for new partitions."""
        loop = asyncio.get_running_loop()
        check_at = loop.time() + TOPICS_CHECK_S
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self.must_rejoin.is_set() or self.generation < 0:
                continue
            await self._send_heartbeat()
            if self._is_leader and loop.time() >= check_at:
                check_at = loop.time() + TOPICS_CHECK_S
                if await self._count_partitions() != self._counts:
                    self.must_rejoin.set()

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Returns False if the membership was lost: another member may read the partitions now."""
        if not offsets:
            return True
        try:
            await commit_offsets(
                self._pool,
                self._group,
                offsets,
                generation=self.generation,
                member_id=self.member_id,
            )
        except KafkaError as error:
            if error.code not in _JOIN_AGAIN:
                raise
            self._note_error(error.code)
            return False
        return True

    async def leave(self) -> None:
        """Leave the group, so that the others need not wait until the session expires."""
        if not self.member_id:
            return
        identity = MemberIdentity(member_id=self.member_id, reason="the consumer is closed")
        message = LeaveGroupRequest(
            group_id=self._group, member_id=self.member_id, members=(identity,)
        )
        self.member_id, self.generation = "", -1
        if self._is_joining:
            # Responses arrive in order: this one would wait until all other members have joined.
            await self._pool.close()
        with contextlib.suppress(OSError, KafkaError):
            async with asyncio.timeout(LEAVE_S_MAX):
                await self._request(ApiKey.LEAVE_GROUP, message, timeout_s=LEAVE_S_MAX)

    # Requests

    async def _join_once(self) -> JoinGroupResponse | None:
        subscription = write_subscription(self._topics)
        message = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(
                JoinGroupRequestProtocol(name=name, metadata=subscription) for name in ASSIGNORS
            ),
        )
        # The response arrives when all members have joined or timed out.
        limit_s = self._rebalance_timeout_ms / 1000 + RESPONSE_S_MAX
        response: JoinGroupResponse = await self._request(
            ApiKey.JOIN_GROUP, message, timeout_s=limit_s
        )
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id  # KIP-394
            return None
        if not self._succeeded(response.error_code):
            return None
        self.member_id, self.generation = response.member_id, response.generation_id
        self._is_leader = response.leader == response.member_id
        return response

    async def _sync_once(self, joined: JoinGroupResponse) -> SyncGroupResponse | None:
        assignments: tuple[SyncGroupRequestAssignment, ...] = ()
        if self._is_leader and not joined.skip_assignment:
            assigned = await self._assign(joined)
            assignments = tuple(
                SyncGroupRequestAssignment(member_id=member, assignment=write_assignment(topics))
                for member, topics in assigned.items()
            )
        message = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        limit_s = self._rebalance_timeout_ms / 1000 + RESPONSE_S_MAX
        response: SyncGroupResponse = await self._request(
            ApiKey.SYNC_GROUP, message, timeout_s=limit_s
        )
        return response if self._succeeded(response.error_code) else None

    async def _assign(self, joined: JoinGroupResponse) -> dict[str, Assignment]:
        members = []
        for row in joined.members:
            try:
                topics = read_subscription(row.metadata)
            except NotConsumerProtocol:
                topics = ()
            members.append(
                Subscriber(
                    member_id=row.member_id, instance_id=row.group_instance_id, topics=topics
                )
            )
        wanted = sorted({topic for member in members for topic in member.topics})
        self._topics_of_group = tuple(wanted)
        self._counts = await self._count_partitions()
        assignor = ASSIGNORS.get(joined.protocol_name or "")
        if assignor is None:
            text = f"group {self._group} chose the unsupported assignor {joined.protocol_name}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        return assignor(members, self._counts)

    async def _count_partitions(self) -> dict[str, int]:
        """Partitions of each topic that any member subscribes to; missing topics are left out."""

        async def once() -> dict[str, int]:
            response = await self._pool.metadata(self._topics_of_group)
            return {
                topic.name: len(topic.partitions)
                for topic in response.topics
                if topic.name is not None and topic.error_code is ErrorCode.NONE
            }

        return await self._pool.try_again(once)

    async def _send_heartbeat(self) -> None:
        asked = self.member_id, self.generation
        message = HeartbeatRequest(
            group_id=self._group, generation_id=self.generation, member_id=self.member_id
        )
        response = await self._request(ApiKey.HEARTBEAT, message, timeout_s=RESPONSE_S_MAX)
        code: ErrorCode = response.error_code
        if asked != (self.member_id, self.generation):
            # We have joined again meanwhile: the response belongs to the old membership. A group
            # that lost its last rebalance in a failover uses the number of a generation again.
            return
        if code in _JOIN_AGAIN:
            self._note_error(code)
        elif code is not ErrorCode.NONE:
            raise KafkaError(code, f"group {self._group}: {code.name}")

    async def _request(self, key: ApiKey, message: Struct, *, timeout_s: float) -> Any:
        async def once() -> Any:
            coordinator = await self._pool.coordinator(self._group)
            response = await self._pool.request_node(coordinator, key, message, timeout_s=timeout_s)
            if response.error_code in RETRIABLE:
                code = response.error_code
                raise KafkaError(code, f"group {self._group}: {code.name}")
            return response

        return await self._pool.try_again(once, group=self._group)

    def _succeeded(self, code: ErrorCode) -> bool:
        """Whether a step succeeded. False: join again. Other errors are raised as KafkaError."""
        if code is ErrorCode.NONE:
            return True
        if code not in _JOIN_AGAIN:
            raise KafkaError(code, f"group {self._group}: {code.name}")
        self._note_error(code)
        return False

    def _note_error(self, code: ErrorCode) -> None:
        if code in _LOST_MEMBERSHIP:
            self.generation = -1
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.must_rejoin.set()
