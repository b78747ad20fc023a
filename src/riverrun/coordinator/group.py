"""A classic group: its members, what they agreed on, and the phase that it is in.

This module holds the facts and keeps them consistent; when and why they change is told in
``join``, ``sync``, ``presence`` and ``rebalance``. Of all this only ``stored()`` outlives the
coordinator; the rest is known to the members themselves, who bring it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct

from riverrun.coordinator.hashing import hash_map_bucket
from riverrun.coordinator.records import StoredGroup, StoredMember
from riverrun.coordinator.subscription import subscribed_topics
from riverrun.coordinator.turn import Waiter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember

CONSUMER = "consumer"
"""The protocol type whose subscriptions the coordinator can read."""

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of the ways of assigning that a member knows, the best liked first."""


class GroupType(Enum):
    """Kinds of groups, by the names that ListGroups uses. Only classic ones are served so far."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class GroupState(Enum):
    """Phases of a classic group, by the names that DescribeGroups uses."""

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
"""Which phases may come before each."""


class Member(Struct, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Whether it waits for its first generation."""
    is_anonymous: bool = False
    """Whether it does not know its own id yet, and has no other name."""
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
        """Whether it need not send heartbeats, since it waits for us.

        New members are not: they do not know their own id yet, and if their connection broke
        nobody else would ever remove them.
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
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending_joins: dict[str, None] = {}
        """Ids given away whose owners have not come back with them (KIP-394)."""
        self.pending_syncs: dict[str, None] = {}
        self.topics: frozenset[str] | None = None
        """What the members subscribe to, as far as we can tell."""
        self.is_member_added = False
        """Whether somebody joined during the initial delay, which prolongs it."""
        self.initial_delay_left_ms = 0
        self.generation_in_flight: int | None = None
        """The generation whose assignment is being written."""
        self._joining = 0
        self._supporters: dict[str, int] = {}

    @classmethod
    def from_stored(cls, group_id: str, stored: StoredGroup) -> ClassicGroup:
        """The group as the log remembers it: nobody waits for anything."""
        group = cls(group_id, 0)
        group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        group.state_timestamp_ms = stored.state_timestamp_ms
        group.protocol_type = stored.protocol_type
        group.protocol_name = stored.protocol_name
        group.generation = stored.generation
        for member in stored.members:
            group.add(
                Member(
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
        """What the log is to remember, given who owns what."""
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
        """How many members wait for the end of the join phase."""
        return self._joining

    @property
    def have_all_joined(self) -> bool:
        return self._joining == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # Members

    def add(self, member: Member) -> None:
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
        """Take out a member, or an id that was given away. Nobody waits for it any more."""
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

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """Give a static member a new id and keep the rest; it waits for nothing."""
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
        self, member: Member, protocols: Protocols, rebalance_ms: int, session_ms: int
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def await_join(self, member: Member, waiter: Waiter | None) -> Waiter | None:
        """Let a member wait, or wait no longer; gives the request that waited until now."""
        before = member.join_waiter
        self._joining += (waiter is not None) - (before is not None)
        member.join_waiter = waiter
        return before

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member, if the ids are those that we know it by."""
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
        """Whether there is a leader that takes part in this rebalance; elects one if need be."""
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
        """Whether a member with these could live here: one name must be known to all members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters.get(name, 0) == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """The protocol with the most votes: each member's first that all know.

        Kafka breaks ties by the order of a HashMap, and so do we, for clients of one group must
        not see another assignor just because they changed brokers.
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
        """When in doubt, a group of consumers is taken to be subscribed."""
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

    def _count_protocols(self, member: Member, change: int) -> None:
        # A name that is given twice counts once, or it would seem to be known to all.
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self._supporters[name] = self._supporters.get(name, 0) + change
            if not self._supporters[name]:
                del self._supporters[name]

    # Answers

    def join_response(self, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """What a member learns at the end of the join phase; the leader learns of everybody."""
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
