"""A group of the consumer protocol (KIP-848): its members, epochs, targets and owners.

State changes only in ``apply``, which takes the records that are also written to the log. A record
is applied when it is emitted, so the next request sees it before it is committed. Replies wait for
the commit. If the log refuses a record, the group is built again from the committed records.

The group epoch rises when members, subscriptions or topics change. The target assignment is then
computed for the new epoch, and each member moves towards it by heartbeats (``reconciliation``). A
partition has at most one owner: it stays in ``owners`` until its owner has given it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from riverrun.coordinator.consumer.records import (
    ConsumerEpochRecord,
    ConsumerMemberRecord,
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    MemberDetails,
    MemberPhase,
    RegexRecord,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
    TopicSlot,
)
from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.coordinator.consumer.targets import TargetComputation


class ConsumerGroupState(Enum):
    """States of a group, with the names of ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """Some member has not reached the target assignment yet."""
    STABLE = "Stable"
    DEAD = "Dead"


class MemberRequest(Enum):
    """Requests of members whose order matters."""

    HEARTBEAT = "heartbeat"
    COMMIT = "commit"


class EpochMember(Struct):
    """A member with its subscription and its assigned partitions."""

    member_id: str
    details: MemberDetails = field(default_factory=MemberDetails)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    @property
    def uses_classic_protocol(self) -> bool:
        return self.details.classic is not None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.current.phase is MemberPhase.STABLE and self.current.epoch == epoch


class EpochGroup:
    """The state of one group of the consumer protocol, which advances by epochs."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.at = GroupEpoch(0, 0)
        self.target_at = TargetEpoch(0, 0)
        self.members: dict[str, EpochMember] = {}
        self.static_ids: dict[str, str] = {}
        self.targets: dict[str, tuple[TopicSlot, ...]] = {}
        self.owners: dict[TopicSlot, str] = {}
        """The member that holds a partition, assigned or not yet given up."""
        self.regexes: dict[str, ResolvedRegex] = {}
        self.is_stale = True
        """Whether subscribed topics may have changed since the last look at the metadata."""
        self.is_regex_stale = True
        """Whether topics were created or deleted since the last resolution."""
        self.computation: TargetComputation | None = None
        """The target assignment that is being computed."""
        self._connections: dict[tuple[str, MemberRequest], int] = {}
        """The newest connection that made each kind of request for a member."""
        self._regex_members: dict[str, int] = {}
        self._topic_members: dict[str, int] = {}

    @classmethod
    def from_records(cls, group_id: str, records: Iterable[ConsumerRecord]) -> EpochGroup:
        """The group of these records, which are sorted by key."""
        group = cls(group_id)
        for record in records:
            group.apply(record)
        return group

    @property
    def epoch(self) -> int:
        return self.at.epoch

    @property
    def target_epoch(self) -> int:
        return self.target_at.epoch

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.target_epoch
        if all(member.is_reconciled_to(epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    # Changes

    def apply(self, record: ConsumerRecord) -> None:
        """Apply a record: the only place where state changes."""
        match record:
            case ConsumerEpochRecord(_, at):
                self.at = at or GroupEpoch(0, 0)
            case TargetEpochRecord(_, target_at):
                self.target_at = target_at or TargetEpoch(0, 0)
            case ConsumerMemberRecord(_, member_id, details):
                self._apply_details(member_id, details)
            case TargetRecord(_, member_id, slots):
                if slots is None:
                    self.targets.pop(member_id, None)
                else:
                    self.targets[member_id] = slots
            case CurrentRecord(_, member_id, current):
                self._apply_current(member_id, current or CurrentAssignment())
            case RegexRecord(_, regex, resolved):
                if resolved is None:
                    self.regexes.pop(regex, None)
                else:
                    self.regexes[regex] = resolved

    def _apply_details(self, member_id: str, details: MemberDetails | None) -> None:
        member = self.members.get(member_id)
        instance_id = None if member is None else member.details.instance_id
        if member is not None:
            self._count_subscription(member.details, -1)
        if details is not None:
            self._count_subscription(details, 1)
        if instance_id is not None and self.static_ids.get(instance_id) == member_id:
            del self.static_ids[instance_id]
        if details is None:
            self._apply_current(member_id, CurrentAssignment())
            self.members.pop(member_id, None)
            for kind in MemberRequest:
                self._connections.pop((member_id, kind), None)
            return
        if member is None:
            self.members[member_id] = EpochMember(member_id, details)
        else:
            member.details = details
        if details.instance_id is not None:
            self.static_ids[details.instance_id] = member_id

    def _count_subscription(self, details: MemberDetails, change: int) -> None:
        regexes = () if details.regex is None else (details.regex,)
        for counts, names in (
            (self._regex_members, regexes),
            (self._topic_members, details.topics),
        ):
            for name in names:
                counts[name] = counts.get(name, 0) + change
                if not counts[name]:
                    del counts[name]

    def _apply_current(self, member_id: str, current: CurrentAssignment) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for held in (member.current.assigned, member.current.revoking):
            for slot in held:
                if self.owners.get(slot) == member_id:
                    del self.owners[slot]
        member.current = current
        for held in (current.assigned, current.revoking):
            for slot in held:
                owner = self.owners.setdefault(slot, member_id)
                assert owner == member_id, f"{slot} of {member_id} belongs to {owner}"

    def check_connection(self, member_id: str, kind: MemberRequest, connection: int | None) -> None:
        """Raises SupersededConnection for a valid request that is older than one before it.

        Requests of a member have no sequence number. One that the network delayed, and that its
        client repeated on a new connection, would report partitions that the client had then, or
        commit an offset of then. Each kind counts for itself: a client may use one connection for
        heartbeats and another one for commits.
        """
        if connection is None:
            return
        if connection < self._connections.get((member_id, kind), connection):
            raise SupersededConnection
        self._connections[member_id, kind] = connection

    # Lookups

    def member(self, member_id: str) -> EpochMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def static_member(self, instance_id: str | None) -> EpochMember | None:
        member_id = None if instance_id is None else self.static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def check_static(self, member_id: str, instance_id: str) -> EpochMember:
        """The member with this instance id. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        member = self.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> EpochMember:
        if instance_id is not None:
            return self.check_static(member_id, instance_id)
        return self.member(member_id)

    def topics_of(self, member: EpochMember) -> dict[str, None]:
        """The topics that a member subscribes to. An unresolved regular expression has none."""
        topics = dict.fromkeys(member.details.topics)
        resolved = self.regexes.get(member.details.regex or "")
        if resolved is not None:
            topics.update(dict.fromkeys(resolved.topics))
        return topics

    def subscribed_topics(self) -> dict[str, None]:
        topics = dict.fromkeys(self._topic_members)
        for resolved in self.regexes.values():
            topics.update(dict.fromkeys(resolved.topics))
        return topics

    def subscribed_regexes(self) -> Mapping[str, int]:
        """Regular expressions with the number of their members."""
        return self._regex_members

    def classic_members(self) -> list[EpochMember]:
        return [member for member in self.members.values() if member.uses_classic_protocol]

    def assignor(self, configured: tuple[str, ...]) -> str:
        """The assignor that most members ask for, or the first one that is configured."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.details.assignor
            if name in configured:
                votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else configured[0]

    def partition_epochs(self) -> Mapping[TopicSlot, int]:
        """The epoch at which each held partition was assigned."""
        return {
            slot: epoch
            for member in self.members.values()
            for held in (member.current.assigned, member.current.revoking)
            for slot, epoch in held.items()
        }
