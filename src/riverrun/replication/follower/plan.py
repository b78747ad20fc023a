"""Builds the fetches to one leader and applies the responses to our logs.

Nothing here waits. Records are appended in slices, between which the caller yields to the event
loop; flushes and truncations wait for the disk and are left to ``fetcher.py``.

The offset of a fetch acknowledges all records below it. So it is always the log end offset, and a
partition with flush.before.ack is flushed before it is fetched.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.randomness import Randomness
from riverrun.replication.follower.followed_partition import FollowedPartition, FollowState, Key
from riverrun.replication.follower.metrics import Counters
from riverrun.replication.follower.session import INITIAL_EPOCH, FollowerFetchSession
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.follower.truncation import Truncation, truncation_at_divergence
from riverrun.replication.isr import IsrLimits, is_nearly_caught_up
from riverrun.replication.partition import Partition
from riverrun.replication.throttle import Throttle
from riverrun.wire.fetch import FetchPartition, FetchResult
from riverrun.wire.fetch_client import FollowerFetchResponse

SLICE_BYTES = 256 * 1024
SLICE_BATCHES = 256
"""Limits of one slice: a few milliseconds of the event loop."""
PARTITIONS_ADDED_MAX = 500
"""Partitions that one request adds to the session. The leader serves a request in one iteration of
its event loop, and a follower may have ten thousand partitions of one leader."""
SHORTEST_WAIT_MS = 1
"""While more partitions are to be added, the leader does not hold the request."""
_QUIET_ATTEMPTS = 4
"""Attempts before an error that stale metadata explains is logged."""
_REPORT_AFTER_SECONDS = 2.0
"""Failures are collected this long and logged together: a restarted leader fails thousands."""
_NAMED_MAX = 3
"""Partitions named in a log line; further ones are only counted."""
_TRUNCATIONS_MAX = 3
"""Failed truncations at the damaged batch, after which the whole log is fetched again."""
_STALE_METADATA = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
)
"""Leader and follower have different metadata for a moment. Logged only if it lasts."""
_logger = structlog.get_logger("riverrun.replication")


class PlannedFetch(NamedTuple):
    """The fields of the next fetch that differ between requests."""

    session_id: int
    session_epoch: int
    wanted: list[FetchPartition]
    forgotten: list[Key]
    max_wait_ms: int


class FetchPlan:
    """The partitions that one fetcher fetches from one leader."""

    def __init__(
        self,
        settings: FollowerSettings,
        *,
        node_id: NodeId,
        randomness: Randomness,
        throttle: Throttle,
        limits: IsrLimits,
        counters: Counters,
    ) -> None:
        self.settings = settings
        self.partitions: dict[Key, FollowedPartition] = {}
        self.session = FollowerFetchSession()
        self.diverged: dict[FollowedPartition, Truncation] = {}
        """Partitions to truncate before they are fetched again."""
        self.out_of_range: dict[FollowedPartition, None] = {}
        """Partitions for which the leader's log start and end offsets must be requested."""
        self._node_id = node_id
        self._randomness = randomness
        self._throttle = throttle
        self._limits = limits
        self._counters = counters
        self._changed: dict[FollowedPartition, None] = {}
        """Partitions whose entry in the session must change with the next request."""
        self._unfollowed: dict[Key, FetchPartition] = {}
        """Entries of the session that are no longer followed."""
        self._requested_count = 0
        self._delayed: list[tuple[float, int, FollowedPartition]] = []
        self._sequence = 0
        self._unreported: dict[tuple[FollowState, str], dict[Key, FollowedPartition]] = {}
        """Failures to be logged, by state and error."""
        self._report_due = 0.0

    # Followed partitions

    def follow(self, partition: Partition) -> FollowedPartition:
        followed = FollowedPartition(partition)
        followed.requested = self._unfollowed.pop(followed.key, None)
        self.partitions[followed.key] = followed
        self._changed[followed] = None
        return followed

    def unfollow(self, key: Key) -> None:
        followed = self.partitions.pop(key, None)
        if followed is not None:
            if followed.requested is not None:
                self._unfollowed[key] = followed.requested
            self._changed.pop(followed, None)
            self.diverged.pop(followed, None)
            self.out_of_range.pop(followed, None)

    def is_current(self, followed: FollowedPartition) -> bool:
        """Whether this leader may still change the log. Checked after every wait."""
        return self.partitions.get(followed.key) is followed and followed.is_valid

    # The next fetch

    def unflushed(self) -> list[FollowedPartition]:
        """Partitions to flush before ``next_fetch``, which would acknowledge their records."""
        candidates = self.partitions.values() if self.session.is_full else self._changed
        return [
            followed
            for followed in candidates
            if followed.log.flushed_offset < followed.log.end_offset
            and followed.state is FollowState.FETCHING
            and followed.is_unflushed
        ]

    def next_fetch(self, now: float) -> PlannedFetch | None:
        """The next fetch; None if no partition can be fetched now (see ``next_due``)."""
        if self._delayed:
            self._resume_due(now)
        if self._unreported and now >= self._report_due:
            self._report_failures()
        session = self.session
        room = PARTITIONS_ADDED_MAX if session.is_kept else len(self.partitions)
        if session.epoch == INITIAL_EPOCH:
            wanted, later = self._request_all(room)
            forgotten: list[Key] = []
        else:
            wanted, forgotten, later = self._request_changed(room)
        self._unfollowed.clear()
        self._changed = later
        if not self._requested_count:
            session.restart()  # An empty session would only occupy the leader's cache.
            return None
        wait_ms = self.settings.wait_max_ms
        if later:
            wait_ms = SHORTEST_WAIT_MS
        elif self._delayed:
            wait_ms = max(min(wait_ms, int((self._delayed[0][0] - now) * 1000) + 1), 1)
        return PlannedFetch(session.id, session.epoch, wanted, forgotten, wait_ms)

    def _request_all(self, room: int) -> tuple[list[FetchPartition], dict[FollowedPartition, None]]:
        """The entries of a new session, and the partitions to add later."""
        wanted: list[FetchPartition] = []
        later: dict[FollowedPartition, None] = {}
        for followed in self.partitions.values():
            followed.requested = None
            if followed.state is not FollowState.FETCHING:
                continue
            if len(wanted) == room:
                later[followed] = None
                continue
            followed.requested = entry = followed.to_fetch(self.settings.bytes_max)
            wanted.append(entry)
        self._requested_count = len(wanted)
        return wanted, later

    def _request_changed(
        self, room: int
    ) -> tuple[list[FetchPartition], list[Key], dict[FollowedPartition, None]]:
        """New and changed entries of the session, those to remove, and partitions to add later."""
        wanted: list[FetchPartition] = []
        forgotten: list[Key] = list(self._unfollowed)
        later: dict[FollowedPartition, None] = {}
        self._requested_count -= len(forgotten)
        for followed in self._changed:
            known = followed.requested
            if followed.state is not FollowState.FETCHING:
                if known is not None:
                    forgotten.append(followed.key)
                    followed.requested = None
                    self._requested_count -= 1
                continue
            if known is None:
                if not room:
                    later[followed] = None
                    continue
                room -= 1
            entry = followed.to_fetch(self.settings.bytes_max)
            if known != entry:
                followed.requested = entry
                wanted.append(entry)
                self._requested_count += known is None
        return wanted, forgotten, later

    @property
    def next_due(self) -> float | None:
        """The time of the next retry of a delayed partition."""
        return self._delayed[0][0] if self._delayed else None

    def _resume_due(self, now: float) -> None:
        delayed = self._delayed
        while delayed and delayed[0][0] <= now:
            _, _, followed = heapq.heappop(delayed)
            if self.partitions.get(followed.key) is followed:
                if self._is_throttled(followed, now):
                    continue
                followed.enter(FollowState.FETCHING)
                self._changed[followed] = None
                if followed.is_damaged:
                    self.refetch(followed.key)

    # Responses

    def apply_response(self, response: FollowerFetchResponse, now: float) -> Iterator[None]:
        """Apply a fetch response. The caller may yield to the event loop at every step."""
        self.session.accepted(response.session_id)
        for result in response.results:
            followed = self.partitions.get((result.topic, result.partition))  # type: ignore[arg-type]
            if followed is None or followed.requested is None:
                continue
            requested = followed.requested
            if (
                requested.leader_epoch != followed.leader_epoch
                or requested.offset != followed.log.end_offset
                or followed.state is not FollowState.FETCHING
                or not followed.is_valid
            ):
                # Requested under another leader epoch, or before a truncation: ignore it.
                self._changed[followed] = None
            elif result.error_code:
                self._rejected(followed, ErrorCode(result.error_code), now)
            elif result.diverging is not None and result.diverging[1] >= 0:
                self._diverged(followed, result)
            else:
                yield from self._append(followed, result, now)

    def _append(
        self, followed: FollowedPartition, result: FetchResult, now: float
    ) -> Iterator[None]:
        log, at = followed.log, 0
        records = result.records
        size = 0 if records is None else len(records)
        try:
            while at < size:
                assert records is not None, "a response with a size has records"
                appended = log.append_as_follower(
                    memoryview(records)[at:] if at else records,
                    epoch_max=followed.leader_epoch,
                    batches_max=SLICE_BATCHES,
                    bytes_max=SLICE_BYTES,
                )
                if appended is None:
                    break
                at += appended.size_bytes
                if at < size:
                    yield
                    if not self.is_current(followed):
                        return
            if at == 0 and size:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no complete batch in the response")
            followed.leader_high_watermark = result.high_watermark
            followed.partition.follower_appended(at, result.high_watermark)
            if not followed.lag:
                followed.caught_up_at = now
            if result.log_start_offset > log.start_offset:
                self._follow_start(followed, result.log_start_offset)
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self._counters.corrupt.value += 1
                self.delay(followed, now, f"corrupt batch from the leader: {error}")
            else:
                self.fail(followed, now, str(error))
            return
        except OSError as error:
            self.fail(followed, now, str(error))
            return
        finally:
            if at:
                self._counters.bytes.value += at
                if self.partitions.get(followed.key) is followed:
                    self._changed[followed] = None
        if followed.attempts:
            followed.attempts, followed.error = 0, ""
        if at:
            if self._node_id in followed.partition.image.adding:
                self._counters.reassigned.value += at
            if self._throttle.applies_to(followed.partition, self._node_id):
                self._throttle.spend(at, now)
                self._is_throttled(followed, now)
            if size >= SLICE_BYTES:
                yield

    def _follow_start(self, followed: FollowedPartition, leader_start: int) -> None:
        """Delete the records that the leader deleted, up to our high watermark."""
        log = followed.log
        log.delete_records_before(min(leader_start, log.high_watermark))
        self._changed[followed] = None

    def _diverged(self, followed: FollowedPartition, result: FetchResult) -> None:
        assert result.diverging is not None, "the response has a diverging epoch"
        epoch, end = result.diverging
        truncation = truncation_at_divergence(followed.log, epoch, end, result.log_start_offset)
        followed.enter(FollowState.TRUNCATING)
        self.diverged[followed] = truncation
        self._changed[followed] = None

    def _rejected(self, followed: FollowedPartition, code: ErrorCode, now: float) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            followed.enter(FollowState.TRUNCATING)
            self.out_of_range[followed] = None
            self._changed[followed] = None
        else:
            quiet_attempts = _QUIET_ATTEMPTS if code in _STALE_METADATA else 0
            self._pause(
                followed, FollowState.DELAYED, now, code.name, quiet_attempts=quiet_attempts
            )

    def refetch(self, key: Key) -> None:
        """Truncate a damaged log at the damaged batch and fetch the rest again.

        If the first batch is damaged, or truncation failed several times, discard the whole log and
        start where the leader's log does.
        """
        followed = self.partitions[key]
        followed.is_damaged = True
        if followed.state is FollowState.FETCHING:
            followed.enter(FollowState.TRUNCATING)
            log = followed.log
            if (
                log.damaged_at is not None
                and log.damaged_at > log.start_offset
                and followed.attempts < _TRUNCATIONS_MAX
            ):
                self.diverged[followed] = Truncation(log.damaged_at)
            else:
                self.out_of_range[followed] = None
            self._changed[followed] = None

    def truncation_done(self, followed: FollowedPartition) -> None:
        """Fetch the partition again, from its new end."""
        self.diverged.pop(followed, None)
        self.out_of_range.pop(followed, None)
        if self.partitions.get(followed.key) is followed:
            followed.is_damaged = False
            followed.enter(FollowState.FETCHING)
            self._changed[followed] = None

    # Errors and delays

    def delay(self, followed: FollowedPartition, now: float, error: str) -> None:
        """Retry later: the leader cannot serve the partition now."""
        self._pause(followed, FollowState.DELAYED, now, error)

    def fail(self, followed: FollowedPartition, now: float, error: str) -> None:
        """Retry later: our disk failed to store the records."""
        self._pause(followed, FollowState.FAILED, now, error)

    def _pause(
        self,
        followed: FollowedPartition,
        state: FollowState,
        now: float,
        error: str,
        *,
        quiet_attempts: int = 0,
    ) -> None:
        self.diverged.pop(followed, None)
        self.out_of_range.pop(followed, None)
        if self.partitions.get(followed.key) is not followed:
            return
        self._counters.errors.value += 1
        is_new = error != followed.error and not quiet_attempts
        if is_new or (quiet_attempts and followed.attempts == quiet_attempts):
            if not self._unreported:
                self._report_due = now + _REPORT_AFTER_SECONDS
            self._unreported.setdefault((state, error), {})[followed.key] = followed
        followed.error = error
        followed.attempts += 1
        delay = self.settings.backoff.jittered(followed.attempts, self._randomness)
        self._sleep(followed, state, now + delay)

    def _report_failures(self) -> None:
        """Log one line for each error, with the number of partitions that are still followed."""
        for (state, error), failed in self._unreported.items():
            partitions = [f.partition for f in failed.values() if self.is_current(f)]
            if partitions:
                _logger.warning(
                    "replica fetch failed",
                    partitions=len(partitions),
                    first=", ".join(str(one.name) for one in partitions[:_NAMED_MAX]),
                    error=error,
                    leader=partitions[0].leader,
                    state=state.value,
                )
        self._unreported.clear()

    def _sleep(self, followed: FollowedPartition, state: FollowState, due: float) -> None:
        followed.enter(state)
        followed.due = due
        self._sequence += 1
        heapq.heappush(self._delayed, (due, self._sequence, followed))
        self._changed[followed] = None

    def _is_throttled(self, followed: FollowedPartition, now: float) -> bool:
        """Whether the partition must wait. One that has all committed records, or had them a
        moment ago, is not delayed: the leader may wait for it before it acknowledges a write."""
        if not followed.lag or not self._throttle.applies_to(followed.partition, self._node_id):
            return False
        if self._is_nearly_caught_up(followed, now):
            return False
        pause = self._throttle.pause_seconds(now)
        if not pause:
            return False
        if followed.state is not FollowState.FETCHING:
            followed.enter(FollowState.FETCHING)
        self._sleep(followed, FollowState.DELAYED, now + pause)
        return True

    def _is_nearly_caught_up(self, followed: FollowedPartition, now: float) -> bool:
        """By the limits of the leader, which counts from its log end offset."""
        return is_nearly_caught_up(
            self._limits,
            leader_end=followed.leader_high_watermark,
            end_offset=followed.log.end_offset,
            caught_up_at=followed.caught_up_at,
            now=now,
        )
