"""Planted bugs in groups of the consumer protocol, which the simulation must find."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec.structs import replace

from riverrun.coordinator.consumer import emission
from riverrun.coordinator.consumer.groups import ConsumerGroups
from riverrun.coordinator.consumer.reconciliation import reconcile
from riverrun.coordinator.consumer.records import TargetRecord
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.groups import offset_requests
from riverrun.coordinator.shard_runner import ShardRunner
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    ConsumerGroupHeartbeatResponse,
)


class GroupBug(Enum):
    PARTITION_IS_GIVEN_EARLY = "a partition gets its new owner before the old one gave it up"
    EPOCH_IS_ANSWERED_EARLY = "a heartbeat is answered before its records are committed"
    FENCED_COMMIT_IS_ACCEPTED = "a member that was fenced may still commit"
    TARGET_IS_LOST_ON_FAILOVER = "a new coordinator does not load the target assignment"
    LATE_MEMBER_REQUEST_IS_ACCEPTED = "a request on an older connection undoes a later one"


def groups_with(bug: GroupBug) -> list[tuple[Any, str, Any]]:
    """What to replace, as (owner, name, replacement)."""
    match bug:
        case GroupBug.PARTITION_IS_GIVEN_EARLY:
            return [
                (emission, "reconcile", _ignore_owners),
                (EpochGroup, "_apply_current", _apply_without_check),
            ]
        case GroupBug.EPOCH_IS_ANSWERED_EARLY:
            return [(ShardRunner, "finish", _answer_at_once(ShardRunner.finish))]
        case GroupBug.FENCED_COMMIT_IS_ACCEPTED:
            return [(offset_requests, "check_consumer_commit", lambda *arguments: None)]
        case GroupBug.TARGET_IS_LOST_ON_FAILOVER:
            return [(ConsumerGroups, "replay", _without_targets(ConsumerGroups.replay))]
        case GroupBug.LATE_MEMBER_REQUEST_IS_ACCEPTED:
            return [(EpochGroup, "check_connection", lambda *arguments: None)]


def _ignore_owners(current: Any, goal: Any) -> Any:
    return reconcile(current, replace(goal, is_held_by_another=lambda slot: False))


def _apply_without_check(self: Any, member_id: str, current: Any) -> None:
    member = self.members.get(member_id)
    if member is None:
        return
    for held in (member.current.assigned, member.current.revoking):
        for slot in held:
            if self.owners.get(slot) == member_id:
                del self.owners[slot]
    member.current = current
    for held in (current.assigned, current.revoking):
        self.owners.update(dict.fromkeys(held, member_id))


def _answer_at_once(finish: Any) -> Any:
    def finishing(self: Any, turn: Any) -> None:
        early = [row for row in turn.replies if isinstance(row[1], ConsumerGroupHeartbeatResponse)]
        if early:
            turn.replies = [row for row in turn.replies if row not in early]
            self._send(early)
        finish(self, turn)

    return finishing


def _without_targets(replay: Any) -> Any:
    """Committed targets are not kept, so they exist only until the group is loaded again."""

    def replaying(self: Any, record: Any) -> None:
        if not isinstance(record, TargetRecord):
            replay(self, record)

    return replaying
