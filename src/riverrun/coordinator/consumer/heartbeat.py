"""ConsumerGroupHeartbeat: members join, stay and leave (KIP-848).

Epoch 0 joins, a positive epoch stays, -1 leaves, and -2 is a static member that will return. Fields
that are null have not changed since the last request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from riverrun.coordinator.consumer.emission import (
    advance,
    assign,
    bump,
    cancel_timers,
    emit,
    emit_removal,
    remove_members,
    restart_member_session,
    timer_key,
)
from riverrun.coordinator.consumer.records import (
    LEFT_STATIC_EPOCH,
    ConsumerMemberRecord,
    CurrentRecord,
    MemberDetails,
    MemberPhase,
    RegexRecord,
    TargetRecord,
    TopicSlot,
    by_topic,
)
from riverrun.coordinator.consumer.regexes import (
    Visible,
    is_refresh_due,
    resolved,
)
from riverrun.coordinator.consumer.state import EpochGroup, EpochMember, MemberRequest
from riverrun.coordinator.records import TEXT_BYTES_MAX
from riverrun.coordinator.turn import Timer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Caller, Turn
    from riverrun.wire.messages.consumer_group_heartbeat_request import (
        ConsumerGroupHeartbeatRequest,
    )

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
CLIENT_ID_SINCE: Final = 1
"""From this version on the client chooses the member id (KIP-1082)."""


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """Check a request by itself, without the group."""
    epoch = request.member_epoch
    names = (("GroupId", request.group_id), ("InstanceId", request.instance_id))
    for name, text in (*names, ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    needs_id = version >= CLIENT_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    if needs_id and not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    if epoch == LEFT_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if epoch < LEFT_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )
    texts = [request.member_id, request.instance_id, request.rack_id]
    texts += [request.subscribed_topic_regex, *(request.subscribed_topic_names or ())]
    if any(text is not None and len(text.encode()) > TEXT_BYTES_MAX for text in texts):
        raise _invalid("A text in the request is too long.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def stay(
    turn: Turn,
    group: EpochGroup,
    caller: Caller,
    request: ConsumerGroupHeartbeatRequest,
    visible: Visible,
) -> ConsumerGroupHeartbeatResponse:
    """A member joins the group, or stays in it."""
    is_joining = request.member_epoch == JOIN_EPOCH
    member_id = request.member_id or str(turn.randomness.uuid())
    found = _find(turn, group, member_id, request)
    group.check_connection(member_id, MemberRequest.HEARTBEAT, caller.connection)
    if found is not None and found.member_id != member_id:
        # A member may come back as a static one. Its partitions must find another owner.
        remove_members(turn, group, [member_id])
        replace_static(turn, group, found, member_id)
        found = group.members[member_id]
    before = found.current.assigned if found is not None else {}
    owned = None if request.topic_partitions is None else owned_slots(request)
    member = update_member(turn, group, member_id, _details(found, caller, request), owned, visible)
    restart_member_session(turn, group, member)
    is_full = (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and owned is not None
    )
    now = member.current.assigned
    is_changed = now.keys() != before.keys()
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        member_id=member_id,
        member_epoch=member.current.epoch,
        heartbeat_interval_ms=turn.consumer_setting(group.group_id, "heartbeat.interval.ms"),
        assignment=assignment_of(now) if is_joining or is_full or is_changed else None,
    )


def _find(
    turn: Turn, group: EpochGroup, member_id: str, request: ConsumerGroupHeartbeatRequest
) -> EpochMember | None:
    """The member of a request, the static member that it replaces, or None for a new one."""
    is_joining = request.member_epoch == JOIN_EPOCH
    instance_id = request.instance_id
    if instance_id is not None and not is_joining:
        member: EpochMember | None = group.check_static(member_id, instance_id)
    elif instance_id is not None and (known := group.static_member(instance_id)) is not None:
        is_gone = known.current.epoch == LEFT_STATIC_EPOCH or known.uses_classic_protocol
        if known.member_id != member_id and not is_gone:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {known.member_id} member.",
            )
        return known
    else:
        member = group.members.get(member_id)
        if member is None and not is_joining:
            group.member(member_id)  # raises UNKNOWN_MEMBER_ID
    if member is None:
        check_capacity(turn, group)
        return None
    _check_epoch(member, request)
    return member


def check_capacity(turn: Turn, group: EpochGroup) -> None:
    limit = turn.settings.consumer_size_max
    if len(group.members) >= limit:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )


def _check_epoch(member: EpochMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """A join is always accepted: the client owns nothing and starts again."""
    if member.current.phase is MemberPhase.UNKNOWN and request.topic_partitions != ():
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "The member is in an unknown state.")
    epoch, known = request.member_epoch, member.current
    if epoch in (JOIN_EPOCH, known.epoch):
        return
    is_lost_response = (
        epoch == known.previous_epoch
        and request.topic_partitions is not None
        and all(slot in known.assigned for slot in owned_slots(request))
    )
    if epoch < known.epoch and is_lost_response:
        return
    how = "greater" if epoch > known.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({known.epoch}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _details(
    member: EpochMember | None, caller: Caller, request: ConsumerGroupHeartbeatRequest
) -> MemberDetails:
    """The details with the fields of the request that are not null."""
    old = MemberDetails() if member is None else member.details
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberDetails(
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=old.topics if names is None else tuple(sorted(dict.fromkeys(names))),
        regex=old.regex if regex is None else regex or None,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=old.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def update_member(
    turn: Turn,
    group: EpochGroup,
    member_id: str,
    details: MemberDetails,
    owned: Iterable[TopicSlot] | None,
    visible: Visible | None,
) -> EpochMember:
    """Store a member's details, then move the group and the member as far as possible. Regular
    expressions are resolved with the rights of the client; ``visible`` is None if unknown."""
    known = group.members.get(member_id)
    old = MemberDetails() if known is None else known.details
    if known is None or details != old:
        emit(turn, group, ConsumerMemberRecord(group.group_id, member_id, details))
    member = group.members[member_id]
    is_changed = details.topics != old.topics or details.regex != old.regex
    if old.regex and old.regex not in group.subscribed_regexes():
        emit(turn, group, RegexRecord(group.group_id, old.regex, None))
    is_resolved = visible is not None and _resolve(turn, group, visible)
    bump(turn, group, is_changed=is_changed or is_resolved or group.epoch == 0)
    assign(turn, group)
    advance(turn, group, member, owned, is_subscription_changed=is_changed or is_resolved)
    return member


def _resolve(turn: Turn, group: EpochGroup, visible: Visible) -> bool:
    """Resolve the regular expressions if necessary; True if their topics changed."""
    interval_ms = turn.settings.consumer_regex_refresh_interval_ms
    if not is_refresh_due(group, turn.now_ms, interval_ms):
        return False
    is_changed = False
    group.is_regex_stale = False
    for record in resolved(group, turn.view, turn.now_ms, visible, turn.matches):
        old = group.regexes.get(record.regex)
        before = () if old is None else old.topics
        is_changed |= before != (() if record.value is None else record.value.topics)
        emit(turn, group, record)
    return is_changed


def replace_static(turn: Turn, group: EpochGroup, old: EpochMember, member_id: str) -> None:
    """A static member returns under another member id and keeps its partitions."""
    group_id = group.group_id
    details, current = old.details, old.current
    target = group.targets.get(old.member_id, ())
    group.computation = None  # it knows only the old id, and the epoch stays
    cancel_timers(turn, group, old.member_id)
    emit_removal(turn, group, old.member_id)
    emit(turn, group, ConsumerMemberRecord(group_id, member_id, details))
    emit(turn, group, TargetRecord(group_id, member_id, target))
    # The former client is gone, so partitions that it had to give up are free.
    start = replace(current, epoch=0, previous_epoch=0, revoking={})
    emit(turn, group, CurrentRecord(group_id, member_id, start))
    turn.note("static member returns", group_id, f"{old.member_id} is now {member_id}")


def leave_consumer(
    turn: Turn, group: EpochGroup, caller: Caller, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """A member leaves for good, or a static one for a restart."""
    member = group.check_member(request.member_id, request.instance_id)
    # A client may join again under the same id while the network still holds its leave.
    group.check_connection(member.member_id, MemberRequest.HEARTBEAT, caller.connection)
    if request.member_epoch == LEFT_STATIC_EPOCH:
        gone = replace(member.current, epoch=LEFT_STATIC_EPOCH, revoking={})
        emit(turn, group, CurrentRecord(group.group_id, member.member_id, gone))
        turn.cancel_deadline(timer_key(Timer.REBALANCE, group, member.member_id))
        turn.note("static member is away", group.group_id, member.member_id)
    else:
        remove_members(turn, group, [member.member_id])
        turn.note("member leaves", group.group_id, member.member_id)
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=0,
    )


def owned_slots(request: ConsumerGroupHeartbeatRequest) -> list[TopicSlot]:
    return [
        (topic.topic_id, index)
        for topic in request.topic_partitions or ()
        if topic.topic_id is not None
        for index in topic.partitions
    ]


def assignment_of(slots: Iterable[TopicSlot]) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in by_topic(slots).items()
        )
    )
