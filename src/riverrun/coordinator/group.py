"""A classic group: its members, the protocol that they agreed on, and its phase.

This module holds the state and keeps it consistent. ``join``, ``sync``, ``liveness`` and
``rebalance`` decide when it changes. Only ``stored()`` survives the coordinator. Members supply the
rest again when they rejoin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct

from riverrun.coordinator.hashing import hash_map_bucket
from riverrun.coordinator.records import StoredGroup, StoredMember
from riverrun.coordinator.shard_kind import Waiter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember

_SUBSCRIPTION_HEAD = struct.Struct(">hi")
_SHORT = struct.Struct(">h")

CONSUMER = "consumer"
"""The protocol type whose subscriptions the coordinator can read."""

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of the assignors that a member supports, in order of preference."""


class GroupType(Enum):
    """Group types, with the names of ListGroups. Only classic groups are implemented."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class GroupState(Enum):
    """Phases of a classic group, with the names of DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


PREDECESSORS: Mapping[GroupState, tuple[GroupState, ...]] = {
    GroupState.EMPTY: (GroupState.PREPARING,),
    GroupState.PREPARING: (GroupState.STABLE, GroupState.COMPLETING, GroupState.EMPTY),
    GroupState.COMPLETING: (GroupState.PREPARING,),
    GroupState.STABLE: (GroupState.COMPLETING,),
    GroupState.DEAD: (
        GroupState.EMPTY,
        GroupState.PREPARING,
        GroupState.COMPLETING,
        GroupState.STABLE,
    ),
}
"""The phases from which each phase can be reached."""


class GroupMember(Struct, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member waits for its first generation."""
    is_anonymous: bool = False
    """Whether the client has neither received its member id nor has an instance id."""
    join_waiter: Waiter | None = None
    sync_waiter: Waiter | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_joining(self) -> bool:
        return self.join_waiter is not None

    @property
    def is_excused(self) -> bool:
        """Whether the member needs no heartbeats, because it waits for a response.

        New members are not excused. They do not have their id yet, and if their connection broke
        only the session timeout would remove them.
        """
        is_waiting = self.join_waiter is not None or self.sync_waiter is not None
        return is_waiting and not self.is_new

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    def stored(self, protocol_name: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


class ClassicGroup:
    """The state of one group."""

    type = GroupType.CLASSIC

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms: int | None = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader_id: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.static_ids: dict[str, str] = {}
        self.pending_joins: dict[str, None] = {}
        """Assigned member ids whose clients have not rejoined with them yet (KIP-394)."""
        self.pending_syncs: dict[str, None] = {}
        self.topics: frozenset[str] | None = None
        """The topics that the members subscribe to; None if unknown."""
        self.is_member_added = False
        """Whether a member joined during the initial delay, which extends the delay."""
        self.initial_delay_left_ms = 0
        self.generation_in_flight: int | None = None
        """The generation whose assignment is being appended."""
        self._joining = 0
        self._supporters: dict[str, int] = {}

    @classmethod
    def from_stored(cls, group_id: str, stored: StoredGroup) -> ClassicGroup:
        """The group as stored in the log, without pending requests."""
        group = cls(group_id, 0)
        group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        group.state_timestamp_ms = stored.state_timestamp_ms
        group.protocol_type = stored.protocol_type
        group.protocol_name = stored.protocol_name
        group.generation = stored.generation
        for member in stored.members:
            group.add(
                GroupMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    protocols=((stored.protocol_name or "", member.subscription),),
                    assignment=member.assignment,
                )
            )
        if stored.leader_id in group.members:
            group.leader_id = stored.leader_id
        group.refresh_topics()
        return group

    def stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        """The durable state of the group with these assignments."""
        return StoredGroup(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                member.stored(self.protocol_name, assignments.get(member.member_id, b""))
                for member in self.members.values()
            ),
        )

    def assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self.members.values()}

    def become(self, state: GroupState, now_ms: int) -> None:
        assert self.state in PREDECESSORS[state], f"{self.group_id}: {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in PREDECESSORS[GroupState.PREPARING]

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER

    @property
    def joining(self) -> int:
        """The number of members that wait for the end of the join phase."""
        return self._joining

    @property
    def have_all_joined(self) -> bool:
        return self._joining == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # Members

    def add(self, member: GroupMember) -> None:
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids, f"{member.instance_id} is taken"
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self._joining += member.is_joining
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member without pending requests, or a pending member id."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            self._joining -= member.is_joining
            if member.instance_id is not None:
                del self.static_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)

    def replace_static(self, instance_id: str, new_id: str) -> GroupMember:
        """Give a static member a new member id and drop its pending requests."""
        old_id = self.static_ids[instance_id]
        member = self.members.pop(old_id)
        self.await_join(member, None)
        member.sync_waiter = None
        member.member_id = new_id
        self.members[new_id] = member
        self.static_ids[instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[new_id] = None
        return member

    def update(
        self, member: GroupMember, protocols: Protocols, rebalance_ms: int, session_ms: int
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def await_join(self, member: GroupMember, waiter: Waiter | None) -> Waiter | None:
        """Replace a member's pending JoinGroup and return the previous one."""
        before = member.join_waiter
        self._joining += (waiter is not None) - (before is not None)
        member.join_waiter = waiter
        return before

    def check_member(self, member_id: str, instance_id: str | None) -> GroupMember:
        """The member with these ids. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            known = self.static_ids.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one of the members that joined; False if none has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].is_joining:
            return True
        joined = next((m.member_id for m in self.members.values() if m.is_joining), None)
        if joined is None:
            return False
        self.leader_id = joined
        return True

    # Protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols may join: all members must support one of them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters.get(name, 0) == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """The protocol with the most votes. A member votes for its first that all support.

        Kafka breaks ties by the order of a HashMap. We do the same, so that a group keeps its
        assignor when it moves from Kafka to riverrun.
        """
        count = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = next(n for n, _ in member.protocols if self._supporters.get(n, 0) == count)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: (votes[name], -hash_map_bucket(name)))

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.refresh_topics()
        self.become(GroupState.COMPLETING if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def refresh_topics(self) -> None:
        self.topics = self._subscribed_topics()

    def is_subscribed_to(self, topic: str) -> bool:
        """If the subscriptions are unknown, a consumer group counts as subscribed."""
        return self.is_consumer if self.topics is None else topic in self.topics

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.is_consumer:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        found: dict[str, None] = {}
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol_name))
            if topics is None:
                return None
            found.update(dict.fromkeys(topics))
        return frozenset(found)

    def _count_protocols(self, member: GroupMember, change: int) -> None:
        # Count a repeated name once. Otherwise it would seem to be supported by more members.
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self._supporters[name] = self._supporters.get(name, 0) + change
            if not self._supporters[name]:
                del self._supporters[name]

    # Responses

    def join_response(
        self, member: GroupMember, *, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        """The response at the end of the join phase; the leader's lists all members."""
        is_leader = member.member_id == self.leader_id
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=self._response_members() if is_leader else (),
            skip_assignment=skip_assignment,
        )

    def _response_members(self) -> tuple[JoinGroupResponseMember, ...]:
        return tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )


def subscribed_topics(subscription: bytes) -> tuple[str, ...] | None:
    """The topics of a consumer's subscription, or None if the bytes are not a subscription.

    All versions of the subscription begin with the fields of version 0, so these suffice.
    """
    topics = []
    try:
        version, count = _SUBSCRIPTION_HEAD.unpack_from(subscription)
        if version < 0 or count < 0 or count > len(subscription):
            return None
        at = _SUBSCRIPTION_HEAD.size
        for _ in range(count):
            (size,) = _SHORT.unpack_from(subscription, at)
            end = at + _SHORT.size + size
            if size < 0 or end > len(subscription):
                return None
            topics.append(subscription[at + _SHORT.size : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics)
