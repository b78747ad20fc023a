"""What a fetcher asks of one leader next, and what the leader's answer means for our logs.

Everything happens on the event loop and nothing here waits: logs are appended to in slices, between
which others may run, and what waits for the disk (syncs, cuts) is handed to the runner.

The offset of a fetch says what we have, and thereby acknowledges it; so it is always the end of the
log, and with flush.before.ack only when all of it is synced.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness
from riverrun.replication.follower.backoff import pause_seconds
from riverrun.replication.follower.followed_partition import FollowedPartition, FollowState, Key
from riverrun.replication.follower.metrics import Counters
from riverrun.replication.follower.session import INITIAL_EPOCH, FollowerFetchSession
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.follower.throttle import Throttle
from riverrun.replication.follower.truncation import Truncation, truncation_at_divergence
from riverrun.replication.partition import Partition
from riverrun.wire.fetch import FetchPartition, FetchResult
from riverrun.wire.fetch_client import FetchAnswer

SLICE_BYTES = 256 * 1024
SLICE_BATCHES = 256
"""What is appended before others may run: some milliseconds at most."""
_PATIENCE = 4
_CUTS_MAX = 3
"""Failures to cut a damaged log where it is damaged, after which all of it goes."""
_NOT_HEARD_YET = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
)
"""One of us has not heard of the newest leader: nothing to speak of unless it lasts."""
_logger = structlog.get_logger("riverrun.replication")


class PlannedFetch(NamedTuple):
    """The next request, but for what is the same in all of them."""

    session_id: int
    session_epoch: int
    wanted: list[FetchPartition]
    forgotten: list[Key]
    max_wait_ms: int


class FetchPlan:
    """The partitions of one leader that one fetcher takes care of."""

    def __init__(
        self,
        settings: FollowerSettings,
        *,
        randomness: Randomness,
        throttle: Throttle,
        counters: Counters,
    ) -> None:
        self.settings = settings
        self.following: dict[Key, FollowedPartition] = {}
        self.session = FollowerFetchSession()
        self.diverged: dict[FollowedPartition, Truncation] = {}
        """To be cut before they are fetched again."""
        self.out_of_range: dict[FollowedPartition, None] = {}
        """The leader is to be asked where its log begins and ends."""
        self._randomness = randomness
        self._throttle = throttle
        self._counters = counters
        self._changed: dict[FollowedPartition, None] = {}
        """What the leader must hear of with the next request of the session."""
        self._left: dict[Key, FetchPartition] = {}
        """What we no longer follow, though the leader believes so."""
        self._asked_count = 0
        self._delayed: list[tuple[float, int, FollowedPartition]] = []
        self._sequence = 0

    # -- Whom to follow ---------------------------------------------------------------------------

    def follow(self, partition: Partition) -> FollowedPartition:
        following = FollowedPartition(partition)
        following.asked = self._left.pop(following.key, None)
        self.following[following.key] = following
        self._changed[following] = None
        return following

    def unfollow(self, key: Key) -> None:
        following = self.following.pop(key, None)
        if following is not None:
            if following.asked is not None:
                self._left[key] = following.asked
            self._changed.pop(following, None)
            self.diverged.pop(following, None)
            self.out_of_range.pop(following, None)

    def is_current(self, following: FollowedPartition) -> bool:
        """Whether it may still be changed on this leader's word; asked after every wait."""
        return self.following.get(following.key) is following and following.is_valid

    # -- The next request -------------------------------------------------------------------------

    def unsynced(self) -> list[FollowedPartition]:
        """What must be synced before ``ask``, for the request would acknowledge it."""
        candidates = self.following.values() if self.session.is_full else self._changed
        return [
            following
            for following in candidates
            if following.log.flushed_offset < following.log.end_offset
            and following.state is FollowState.FETCHING
            and following.is_unsynced
        ]

    def ask(self, now: float) -> PlannedFetch | None:
        """The next request; None when there is nothing to ask for now (see ``next_due``)."""
        if self._delayed:
            self._revive(now)
        session = self.session
        wanted: list[FetchPartition] = []
        forgotten: list[Key] = []
        bytes_max = self.settings.bytes_max
        if session.epoch == INITIAL_EPOCH:
            for following in self.following.values():
                following.asked = None
                if following.state is FollowState.FETCHING:
                    following.asked = wish = following.wish(bytes_max)
                    wanted.append(wish)
            self._asked_count = len(wanted)
        else:
            if self._left:
                forgotten += self._left
                self._asked_count -= len(forgotten)
            for following in self._changed:
                known = following.asked
                if following.state is not FollowState.FETCHING:
                    if known is not None:
                        forgotten.append(following.key)
                        following.asked = None
                        self._asked_count -= 1
                    continue
                wish = following.wish(bytes_max)
                if known != wish:
                    following.asked = wish
                    wanted.append(wish)
                    self._asked_count += known is None
        self._left.clear()
        self._changed.clear()
        if not self._asked_count:
            session.restart()  # an empty one would only hold a place in the leader's cache
            return None
        wait_ms = self.settings.wait_max_ms
        if self._delayed:
            wait_ms = max(min(wait_ms, int((self._delayed[0][0] - now) * 1000) + 1), 1)
        return PlannedFetch(session.id, session.epoch, wanted, forgotten, wait_ms)

    @property
    def next_due(self) -> float | None:
        """When a partition is to be tried again."""
        return self._delayed[0][0] if self._delayed else None

    def _revive(self, now: float) -> None:
        delayed = self._delayed
        while delayed and delayed[0][0] <= now:
            _, _, following = heapq.heappop(delayed)
            if self.following.get(following.key) is following:
                if self._is_throttled(following, now):
                    continue
                following.enter(FollowState.FETCHING)
                self._changed[following] = None
                if following.is_damaged:
                    self.refetch(following.key)

    # -- The answer -------------------------------------------------------------------------------

    def take(self, answer: FetchAnswer, now: float) -> Iterator[None]:
        """Apply an answer; others may run at every step."""
        self.session.answered(answer.session_id)
        for result in answer.results:
            following = self.following.get((result.topic, result.partition))  # type: ignore[arg-type]
            if following is None or following.asked is None:
                continue
            asked = following.asked
            if (
                asked.leader_epoch != following.leader_epoch
                or asked.offset != following.log.end_offset
                or following.state is not FollowState.FETCHING
                or not following.is_valid
            ):
                # Asked under another leader, or before the log was cut: it means nothing now.
                self._changed[following] = None
            elif result.error_code:
                self._refused(following, code_of(result.error_code), now)
            elif result.diverging is not None and result.diverging[1] >= 0:
                self._diverged(following, result)
            else:
                yield from self._append(following, result, now)

    def _append(
        self, following: FollowedPartition, result: FetchResult, now: float
    ) -> Iterator[None]:
        log, at = following.log, 0
        records = result.records
        size = 0 if records is None else len(records)
        try:
            while at < size:
                assert records is not None, "records without any"
                appended = log.append_as_follower(
                    memoryview(records)[at:] if at else records,
                    epoch_max=following.leader_epoch,
                    batches_max=SLICE_BATCHES,
                    bytes_max=SLICE_BYTES,
                )
                if appended is None:
                    break
                at += appended.size_bytes
                if at < size:
                    yield
                    if not self.is_current(following):
                        return
            if at == 0 and size:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no batch that could be appended")
            following.leader_high_watermark = result.high_watermark
            following.partition.follower_appended(at, result.high_watermark)
            if result.log_start_offset > log.start_offset:
                self._follow_start(following, result.log_start_offset)
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self._counters.corrupt.value += 1
                self.delay(following, now, f"the leader sent damage: {error}")
            else:
                self.fail(following, now, str(error))
            return
        except OSError as error:
            self.fail(following, now, str(error))
            return
        finally:
            if at:
                self._counters.bytes.value += at
                if self.following.get(following.key) is following:
                    self._changed[following] = None
        if following.attempts:
            following.attempts, following.reason = 0, ""
        if at:
            if self._throttle.concerns(following.partition):
                self._throttle.spend(at, now)
                self._is_throttled(following, now)
            if size >= SLICE_BYTES:
                yield

    def _follow_start(self, following: FollowedPartition, leader_start: int) -> None:
        """What the leader has discarded is not kept here either, as far as it is committed."""
        log = following.log
        log.delete_records_before(min(leader_start, log.high_watermark))
        self._changed[following] = None

    def _diverged(self, following: FollowedPartition, result: FetchResult) -> None:
        assert result.diverging is not None, "no divergence to act on"
        epoch, end = result.diverging
        cut = truncation_at_divergence(following.log, epoch, end, result.log_start_offset)
        following.enter(FollowState.TRUNCATING)
        self.diverged[following] = cut
        self._changed[following] = None

    def _refused(self, following: FollowedPartition, code: ErrorCode, now: float) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            following.enter(FollowState.TRUNCATING)
            self.out_of_range[following] = None
            self._changed[following] = None
        else:
            patience = _PATIENCE if code in _NOT_HEARD_YET else 0
            self._pause(following, FollowState.DELAYED, now, code.name, patience=patience)

    def refetch(self, key: Key) -> None:
        """What we hold of it is damaged: drop that and what follows, or if the beginning is, or
        that did not work, all; and begin where the leader's log does.
        """
        following = self.following[key]
        following.is_damaged = True
        if following.state is FollowState.FETCHING:
            following.enter(FollowState.TRUNCATING)
            log = following.log
            if (
                log.damaged_at is not None
                and log.damaged_at > log.start_offset
                and following.attempts < _CUTS_MAX
            ):
                self.diverged[following] = Truncation(log.damaged_at)
            else:
                self.out_of_range[following] = None
            self._changed[following] = None

    # -- Cutting ----------------------------------------------------------------------------------

    def cut_done(self, following: FollowedPartition) -> None:
        """Fetch it again, from its new end on."""
        self.diverged.pop(following, None)
        self.out_of_range.pop(following, None)
        if self.following.get(following.key) is following:
            following.is_damaged = False
            following.enter(FollowState.FETCHING)
            self._changed[following] = None

    # -- Trouble ----------------------------------------------------------------------------------

    def delay(self, following: FollowedPartition, now: float, reason: str) -> None:
        """Try again later: the leader cannot serve it now."""
        self._pause(following, FollowState.DELAYED, now, reason)

    def fail(self, following: FollowedPartition, now: float, reason: str) -> None:
        """Try again later: our disk did not take it."""
        self._pause(following, FollowState.FAILED, now, reason)

    def _pause(
        self,
        following: FollowedPartition,
        state: FollowState,
        now: float,
        reason: str,
        *,
        patience: int = 0,
    ) -> None:
        self.diverged.pop(following, None)
        self.out_of_range.pop(following, None)
        if self.following.get(following.key) is not following:
            return
        self._counters.errors.value += 1
        pause = pause_seconds(following.attempts, self.settings.backoff_ms / 1000, self._randomness)
        is_new = reason != following.reason and not patience
        if is_new or (patience and following.attempts == patience):
            _logger.warning(
                "replica is not fetched", partition=str(following.partition.name), reason=reason,
                leader=following.partition.leader, state=state.value,
            )  # fmt: skip
        following.reason = reason
        following.attempts += 1
        self._sleep(following, state, now + pause)

    def _sleep(self, following: FollowedPartition, state: FollowState, due: float) -> None:
        following.enter(state)
        following.due = due
        self._sequence += 1
        heapq.heappush(self._delayed, (due, self._sequence, following))
        self._changed[following] = None

    def _is_throttled(self, following: FollowedPartition, now: float) -> bool:
        free_at = self._throttle.free_at()
        if free_at <= now or not self._throttle.concerns(following.partition):
            return False
        if following.state is not FollowState.FETCHING:
            following.enter(FollowState.FETCHING)
        self._sleep(following, FollowState.DELAYED, free_at)
        return True


def code_of(number: int) -> ErrorCode:
    """A leader of a later version may know errors that we do not."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
