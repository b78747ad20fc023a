"""A driver for tests of one shard: members act, time passes, the log commits on command.

Nothing waits. Records are committed at once unless the test holds the log, which makes the time
between an append and its commit observable.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.log import InTransaction, TransactionEnd
from riverrun.coordinator.records import CoordinatorRecord, decode, encode
from riverrun.coordinator.settings import GroupSettings
from riverrun.coordinator.shard import GroupShard
from riverrun.coordinator.shard_kind import Waiter
from riverrun.coordinator.turn import Caller, Turn
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
from riverrun.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

GROUP = "readers"
START_MS = 1_700_000_000_000


class CountedRandomness:
    """Readable ids: 1, 2, 3."""

    def __init__(self) -> None:
        self.drawn = 0

    def uuid(self) -> uuid.UUID:
        self.drawn += 1
        return uuid.UUID(int=self.drawn)

    def below(self, limit: int) -> int:
        return 0

    def between(self, low: float, high: float) -> float:
        return low


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, version 0."""
    parts = [struct.pack(">hi", 0, len(topics))]
    parts += [struct.pack(">h", len(topic)) + topic.encode() for topic in topics]
    return b"".join([*parts, struct.pack(">i", -1)])


def settings(**texts: str) -> GroupSettings:
    """Settings by name with underscores for dots; no initial rebalance delay by default."""
    named = {name.replace("_", "."): text for name, text in texts.items()}
    return GroupSettings.from_texts({"group.initial.rebalance.delay.ms": "0", **named})


class ShardDriver:
    def __init__(self, view: GroupCatalog | None = None, **texts: str) -> None:
        self.settings = settings(**texts)
        self.randomness = CountedRandomness()
        self.view = view
        self.shard = GroupShard(self.settings, self.randomness, view)
        self.now = 1000.0
        self.log: list[CoordinatorRecord] = []
        self.responses: dict[Waiter, Any] = {}
        self.is_held = False
        self._in_flight: list[Turn] = []
        self._waiters = 0

    # The log and time

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.now * 1000)

    def turn(self) -> Turn:
        return self.shard.turn(self.now, self.now_ms)

    def finish(self, turn: Turn) -> None:
        if not turn.records and not (turn.is_serial and self._in_flight):
            self.responses.update(turn.replies)
            return
        self.shard.sent(turn.records)
        self._in_flight.append(turn)
        if not self.is_held:
            self.commit_log()

    def hold(self) -> None:
        self.is_held = True

    def commit_log(self) -> None:
        """Commit all turns in flight."""
        self.is_held = False
        while self._in_flight:
            written = self._in_flight.pop(0)
            self.log += map(_stored, written.records)
            turn = self.turn()
            self.shard.committed(turn, written.records)
            self.responses.update(written.replies)
            self.finish(turn)

    def refuse_log(self, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Refuse all turns in flight."""
        self.is_held = False
        refused, self._in_flight = self._in_flight, []
        for written in refused:
            turn = self.turn()
            self.shard.refused(turn, written.records, code)
            self.responses.update((waiter, code) for waiter, _ in written.replies)
            self.finish(turn)

    def wait(self, seconds: float) -> None:
        """Let time pass and handle each deadline when it is due."""
        end = self.now + seconds
        while (at := self.shard.deadlines.next()) is not None and at <= end:
            self.now = max(at, self.now)
            turn = self.turn()
            self.shard.expire(turn)
            self.finish(turn)
        self.now = end

    def settle(self) -> None:
        """Handle the deadlines that are due now."""
        self.wait(0)

    def restart(self) -> None:
        """A new coordinator loads the log; uncommitted records are lost."""
        self._in_flight.clear()
        self.is_held = False
        self.shard = rebuilt(self.settings, self.randomness, self.log, self.view)
        turn = self.turn()
        self.shard.restore(turn, self.shard.known_ids())
        self.finish(turn)

    @property
    def group(self) -> ClassicGroup:
        return self.shard.groups[GROUP]

    def state(self) -> GroupState:
        return self.group.state

    def ask(self, act: Callable[[Turn, Waiter], None]) -> Waiter:
        """Send a request; its response appears in ``responses``."""
        self._waiters += 1
        waiter = Waiter(self._waiters)
        turn = self.turn()
        try:
            act(turn, waiter)
        except KafkaError as error:
            self.responses[waiter] = error.code
            return waiter
        self.finish(turn)
        self.settle()
        return waiter

    def member(self, name: str, **options: Any) -> Actor:
        return Actor(self, name, **options)

    def commit_without_member(self, offset: int, **fields: Any) -> Any:
        waiter = self.ask(
            lambda turn, waiter: self.shard.commit(
                turn, waiter, caller("admin", fields.pop("version", 9)), commit(offset, **fields)
            )
        )
        return commit_code(self.responses.get(waiter))

    def committed(self, partition: int = 0, topic: str = "orders") -> int:
        asked = OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
        found = self.shard.fetch(GROUP, [asked])
        return found.topics[0].partitions[0].committed_offset


class Actor:
    """A client that joins the group."""

    def __init__(
        self,
        driver: ShardDriver,
        name: str,
        *,
        version: int = 9,
        instance: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        topics: tuple[str, ...] = ("orders",),
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
    ) -> None:
        self.driver = driver
        self.name = name
        self.version = version
        self.instance = instance
        self.protocols = protocols
        self.protocol_type = protocol_type
        self.topics = topics
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.id = ""
        self.generation = -1
        self.joining: Waiter | None = None
        self.syncing: Waiter | None = None

    def send_join(self) -> None:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=tuple(
                JoinGroupRequestProtocol(name=name, metadata=subscription(*self.topics))
                for name in self.protocols
            ),
        )
        client = caller(self.name, self.version)
        shard = self.driver.shard
        self.joining = self.driver.ask(
            lambda turn, waiter: shard.join(turn, waiter, client, request)
        )
        response = self.driver.responses.get(self.joining)
        if not isinstance(response, JoinGroupResponse):
            return
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            self.send_join()

    @property
    def join_waiter(self) -> Waiter:
        assert self.joining is not None, f"{self.name} has sent no JoinGroup"
        return self.joining

    @property
    def sync_waiter(self) -> Waiter:
        assert self.syncing is not None, f"{self.name} has sent no SyncGroup"
        return self.syncing

    def joined_or_none(self) -> JoinGroupResponse | None:
        response = None if self.joining is None else self.driver.responses.get(self.joining)
        assert response is None or isinstance(response, JoinGroupResponse), response
        if response is not None and response.error_code is ErrorCode.NONE:
            self.id = response.member_id
            self.generation = response.generation_id
        return response

    def joined(self) -> JoinGroupResponse:
        response = self.joined_or_none()
        assert response is not None, f"{self.name} still waits to join"
        return response

    @property
    def is_joining(self) -> bool:
        return self.joined_or_none() is None

    def join(self) -> JoinGroupResponse:
        self.send_join()
        return self.joined()

    def join_code(self) -> ErrorCode:
        self.send_join()
        response = self.driver.responses.get(self.join_waiter)
        return response if isinstance(response, ErrorCode) else self.joined().error_code

    def send_sync(self, parts: dict[str, bytes] | None = None, **fields: Any) -> None:
        values = {
            "group_id": GROUP,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "assignments": tuple(
                SyncGroupRequestAssignment(member_id=one, assignment=data)
                for one, data in (parts or {}).items()
            ),
            **fields,
        }
        request = SyncGroupRequest(**values)
        shard = self.driver.shard
        self.syncing = self.driver.ask(lambda turn, waiter: shard.sync(turn, waiter, request))

    @property
    def is_syncing(self) -> bool:
        return self.syncing not in self.driver.responses

    def synced(self) -> bytes | ErrorCode:
        """The assignment, or the error code."""
        response = self.driver.responses[self.sync_waiter]
        if isinstance(response, ErrorCode):
            return response
        assert isinstance(response, SyncGroupResponse)
        return response.assignment if response.error_code is ErrorCode.NONE else response.error_code

    def sync(self, parts: dict[str, bytes] | None = None, **fields: Any) -> bytes | ErrorCode:
        self.send_sync(parts, **fields)
        return self.synced()

    def heartbeat(self, **fields: Any) -> ErrorCode:
        values = {
            "group_id": GROUP,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            **fields,
        }
        try:
            turn = self.driver.turn()
            response = self.driver.shard.heartbeat(turn, HeartbeatRequest(**values))
        except KafkaError as error:
            assert not turn.records, "a refused request writes nothing"
            return error.code
        self.driver.finish(turn)
        return response.error_code

    def leave(self) -> ErrorCode:
        return leave(self.driver, self.id, self.instance)[0]

    def commit(self, offset: int, **fields: Any) -> Any:
        values = {
            "member": self.id,
            "generation": self.generation,
            "instance": self.instance,
            **fields,
        }
        client = caller(self.name, values.pop("version", 9))
        shard = self.driver.shard
        waiter = self.driver.ask(
            lambda turn, waiter: shard.commit(turn, waiter, client, commit(offset, **values))
        )
        return commit_code(self.driver.responses.get(waiter))


def caller(client_id: str, version: int, connection: int | None = None) -> Caller:
    return Caller(
        client_id=client_id,
        client_host="/127.0.0.1",
        api_version=version,
        connection=connection,
    )


def leave(driver: ShardDriver, *identities: str | None) -> list[ErrorCode]:
    """LeaveGroup of pairs of member and instance ids."""
    pairs = zip(identities[::2], identities[1::2], strict=True)
    members = tuple(
        MemberIdentity(member_id=member or "", group_instance_id=instance)
        for member, instance in pairs
    )
    request = LeaveGroupRequest(group_id=GROUP, members=members)
    shard = driver.shard
    waiter = driver.ask(lambda turn, waiter: shard.leave(turn, waiter, request))
    response = driver.responses[waiter]
    assert isinstance(response, LeaveGroupResponse)
    return [one.error_code for one in response.members]


def commit(
    offset: int,
    *,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    topic: str = "orders",
    partition: int = 0,
    metadata: str | None = "",
    retention_ms: int = -1,
    topic_id: uuid.UUID | None = None,
    group: str = GROUP,
) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=(OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=(part,)),),
    )


def commit_code(response: Any) -> Any:
    if response is None or isinstance(response, ErrorCode):
        return response
    return response.topics[0].partitions[0].error_code


def rebuilt(
    chosen: GroupSettings,
    randomness: CountedRandomness,
    log: list[CoordinatorRecord],
    view: GroupCatalog | None = None,
) -> GroupShard:
    """A shard with the log replayed."""
    shard = GroupShard(chosen, randomness, view)
    for record in log:
        shard.replay(record)
    return shard


def _stored(record: CoordinatorRecord) -> CoordinatorRecord:
    """The record as it is read from the log."""
    match record:
        case TransactionEnd():
            return record
        case InTransaction(transaction, inner):
            return InTransaction(transaction, decode(*encode(inner)))
        case _:
            return decode(*encode(record))


def stable_group(driver: ShardDriver, *members: Actor) -> None:
    """All members join, the first leads, and each gets its own name as assignment."""
    for member in members:
        member.send_join()
    for member in members:
        if driver.state() is GroupState.PREPARING and not member.is_joining:
            member.send_join()
    parts = {member.joined().member_id: member.name.encode() for member in members}
    for member in members:
        assert member.joined().generation_id == driver.group.generation, member.name
        member.send_sync(parts)
    for member in members:
        assert member.synced() == member.name.encode()
