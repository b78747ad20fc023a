"""One turn of a coordinator: what a request or a deadline may use, and what it leaves behind.

The state machines get a ``Turn``, read the time and the settings from it, and put records, replies
and deadlines into it. Whoever runs them writes the records and sends the replies when the records
are committed; so nothing here waits, and a test is a list of turns.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

from msgspec import Struct, field

from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.records import CoordinatorRecord
from riverrun.coordinator.settings import GroupSettings
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponseGroup
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

Waiter = NewType("Waiter", int)
"""A request that waits for its reply, by a number that its runner gave it."""

Response = (
    JoinGroupResponse
    | SyncGroupResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetDeleteResponse
    | OffsetFetchResponseGroup
    | DeletableGroupResult
    | None
)
"""What a waiter may be told; None that all before it is written."""


class Timer(IntEnum):
    """What a group waits for; the first of two due at once is the lower one."""

    SESSION = 0
    JOIN = 1
    SYNC = 2


TimerKey = tuple[Timer, str, str]
"""(timer, group id, member id); the member id is empty for timers of the whole group."""


class Caller(Struct, frozen=True, kw_only=True):
    """Who asks, and in which version."""

    client_id: str
    client_host: str
    api_version: int


class Note(Struct, frozen=True):
    """Something that an operator may want to read in the log."""

    event: str
    group_id: str
    detail: str


class Turn(Struct, kw_only=True):
    now: float
    """Seconds, monotonic: for deadlines."""
    now_ms: int
    """Milliseconds since 1970: for what is stored."""
    settings: GroupSettings
    randomness: Randomness
    deadlines: Deadlines[TimerKey]
    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Waiter, Response]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def reply(self, waiter: Waiter, response: Response) -> None:
        """Answer a request when the records of this turn are committed."""
        self.replies.append((waiter, response))

    def set_deadline(self, key: TimerKey, delay_ms: int) -> None:
        self.deadlines.set(key, self.now + delay_ms / 1000)

    def cancel_deadline(self, key: TimerKey) -> None:
        self.deadlines.cancel(key)

    def note(self, event: str, group_id: str, detail: str = "") -> None:
        self.notes.append(Note(event, group_id, detail))
