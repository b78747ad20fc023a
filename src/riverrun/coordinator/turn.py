"""One step of the coordinator, as a value.

A ``Turn`` carries the inputs of a step (time, settings, randomness) and collects its results:
records to append, replies to send, deadlines to set, notes to log. The shard's state machines only
read from and add to a turn; they never wait and do no I/O. ``ShardRunner`` then appends the records
and sends the replies once the records are committed. A test is a list of turns.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct, field

from riverrun.coordinator.consumer.catalog import EmptyCatalog, GroupCatalog
from riverrun.coordinator.consumer.regexes import TopicMatches
from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.records import CoordinatorRecord
from riverrun.coordinator.settings import GroupSettings
from riverrun.coordinator.shard_kind import Note, Waiter
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    ConsumerGroupHeartbeatResponse,
)
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponseGroup
from riverrun.wire.messages.sync_group_response import SyncGroupResponse
from riverrun.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse

Response = (
    JoinGroupResponse
    | SyncGroupResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetDeleteResponse
    | OffsetFetchResponseGroup
    | TxnOffsetCommitResponse
    | DeletableGroupResult
    | ConsumerGroupHeartbeatResponse
    | None
)
"""The reply to a waiter. None means that all earlier writes are committed or refused."""


class Timer(IntEnum):
    """The deadlines of a group."""

    SESSION = 0
    JOIN = 1
    SYNC = 2
    REBALANCE = 3
    """A member of the consumer protocol has to give up partitions."""
    ASSIGN = 4
    """The target assignment of a group is due."""


TimerKey = tuple[Timer, str, str]
"""(timer, group id, member id); the member id is empty for timers of the whole group."""


class Caller(Struct, frozen=True, kw_only=True):
    """The client of a request and the API version that it used."""

    client_id: str
    client_host: str
    api_version: int
    connection: int | None = None
    """The number of the connection; later ones have larger numbers."""


class Turn(Struct, kw_only=True):
    """Inputs and results of one request, one round of deadlines, or one committed batch."""

    now: float
    """Monotonic seconds, for deadlines."""
    now_ms: int
    """Milliseconds since 1970, for timestamps in records."""
    settings: GroupSettings
    randomness: Randomness
    deadlines: Deadlines[TimerKey]
    view: GroupCatalog = field(default_factory=EmptyCatalog)
    matches: TopicMatches = field(default_factory=TopicMatches)
    """Topics that were matched against regular expressions before the turn."""
    is_serial: bool = False
    """Write the records in one batch, and reply after all earlier writes."""
    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Waiter, Response]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def reply(self, waiter: Waiter, response: Response) -> None:
        """Send a response once the records of this turn are committed."""
        self.replies.append((waiter, response))

    def set_deadline(self, key: TimerKey, delay_ms: int) -> None:
        self.deadlines.set(key, self.now + delay_ms / 1000)

    def cancel_deadline(self, key: TimerKey) -> None:
        self.deadlines.cancel(key)

    def consumer_setting(self, group_id: str, name: str) -> int:
        """A setting of groups of the consumer protocol, such as "session.timeout.ms"."""
        text = self.view.group_config(group_id).get(f"consumer.{name}")
        return self.settings.consumer_value(name, text)

    def note(self, event: str, group_id: str, detail: str = "") -> None:
        self.notes.append(Note(event, group_id, detail))
