"""The leader's rules: serve fetches, count flushed offsets, and resign without a majority.

The high watermark is the offset that a majority of the voters has flushed, including this leader's
own flushed offset. It advances only when it covers a record of the leader's own epoch (Raft 5.4.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.raft.effects import ReadLog, ReadSnapshot
from riverrun.raft.member import QuorumMember
from riverrun.raft.messages import (
    Answer,
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from riverrun.raft.states import Ask, Held, Leader, Replica
from riverrun.raft.types import EpochEnd, ReplicaKey, SnapshotId, Voter

CHECK_QUORUM_FACTOR: Final = 1.5
OBSERVER_SECONDS_MAX: Final = 300.0
"""After this time, an observer that does not fetch is dropped."""
REPLICAS_MAX: Final = 10_000


class Leading:
    def __init__(self, member: QuorumMember, on_commit: Callable[[], None]) -> None:
        self._member = member
        self._on_commit = on_commit

    def fetch(self, request: FetchRequest, token: object) -> None:
        member = self._member
        code = self._check(request.epoch, request.replica)
        if code is ErrorCode.NONE and min(request.fetch_offset, request.last_fetched_epoch) < 0:
            code = ErrorCode.INVALID_REQUEST
        if code is not ErrorCode.NONE:
            member.respond(token, member.answer(FetchResponse, code))
            return
        role = self._role
        earlier = role.held.pop(request.replica, None)
        if earlier is not None:
            # The replica cancelled its long poll and fetches again.
            self._answer(earlier, ReadLog(earlier.request.fetch_offset, 0))
        found = self._compare(request.fetch_offset, request.last_fetched_epoch)
        replica = self._touch(request.replica)
        if found is not None:
            response = self._fetch_response()
            if isinstance(found, EpochEnd):
                response = replace(response, diverging=found)
            else:
                response = replace(response, snapshot=found)
            member.respond(token, response)
            return
        self._acknowledge(request, replica)
        longest = member.settings.fetch_timeout_ms // 2
        wait = min(max(0, request.max_wait_ms), longest) / 1000
        held = Held(request=request, token=token, deadline=member.now + wait)
        self.advance()
        # A leader that removed itself resigns when the change is committed, and is then no longer
        # leader.
        if isinstance(member.role, Leader):
            member.role.held[request.replica] = held
            self._serve(request.replica, held)
        else:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            member.respond(token, member.answer(FetchResponse, code))

    @property
    def _role(self) -> Leader:
        role = self._member.role
        assert isinstance(role, Leader), f"{role} is asked to lead"
        return role

    def _check(self, epoch: int, replica: ReplicaKey) -> ErrorCode:
        member = self._member
        if epoch < member.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > member.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(member.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica.id == member.me.id:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _compare(self, offset: Offset, epoch: LeaderEpoch) -> EpochEnd | SnapshotId | None:
        """None if the replica's log is a prefix of ours; otherwise the response that brings it
        back."""
        log = self._member.log
        snapshot = log.latest_snapshot
        if offset >= log.start_offset and snapshot == SnapshotId(offset, epoch):
            return None
        known = None if offset < log.start_offset else log.epoch_end(epoch)
        if known is None:
            assert snapshot is not None, f"no snapshot ends before {log.start_offset}"
            return snapshot
        if known.epoch != epoch or known.end < offset:
            return known
        return None

    def _touch(self, key: ReplicaKey) -> Replica:
        """Record that a replica is alive, whatever its position."""
        member = self._member
        replicas = self._role.replicas
        replica = replicas.get(key)
        if replica is None:
            replica = Replica(
                offset=Offset(-1),
                last_seen=member.now,
                last_heard=member.now,
                last_fetch=None,
                leader_end_at_last_fetch=member.log.end_offset,
                known_high_watermark=Offset(-1),
            )
            if key.id >= 0 and len(replicas) < REPLICAS_MAX:
                replicas[key] = replica
        replica.last_seen = replica.last_heard = member.now
        if key.id >= 0:
            member.hear(key.id)
        return replica

    def _acknowledge(self, request: FetchRequest, replica: Replica) -> None:
        member = self._member
        end = member.log.end_offset
        assert request.fetch_offset <= end, f"{request} is beyond {end}"
        if request.fetch_offset >= end:
            replica.last_caught_up = member.now
        elif request.fetch_offset >= replica.leader_end_at_last_fetch:
            # The replica has everything that existed at its previous fetch.
            replica.last_caught_up = replica.last_fetch
        # May be lower than before: a replica whose disk was restored reports what it has.
        replica.offset = request.fetch_offset
        replica.last_fetch = member.now
        replica.leader_end_at_last_fetch = end
        if request.high_watermark is not None:
            replica.known_high_watermark = request.high_watermark

    def _serve(self, key: ReplicaKey, held: Held) -> None:
        """Respond if there is data, or if the long poll has timed out."""
        member = self._member
        replica = self._role.replicas.get(key)
        known = member.high_watermark if replica is None else replica.known_high_watermark
        has_data = held.request.fetch_offset < member.log.end_offset
        if has_data or known < member.high_watermark or member.now >= held.deadline:
            del self._role.held[key]
            if replica is not None:
                replica.known_high_watermark = member.high_watermark
            # Kafka's replicas may send no limit. A response needs at least one batch to make
            # progress.
            limit = max(1, min(held.request.max_bytes, member.settings.fetch_bytes_max))
            self._answer(held, ReadLog(held.request.fetch_offset, limit))

    def _answer(self, held: Held, read: ReadLog) -> None:
        has_data = read.max_bytes > 0 and read.offset < self._member.log.end_offset
        self._member.respond(held.token, self._fetch_response(), read if has_data else None)

    def _fetch_response(self) -> FetchResponse:
        member = self._member
        return replace(
            member.answer(FetchResponse),
            high_watermark=member.high_watermark,
            log_start_offset=member.log.start_offset,
        )

    def fetch_snapshot(self, request: FetchSnapshotRequest, token: object) -> None:
        member = self._member
        code = self._check(request.epoch, request.replica)
        size = None
        if code is ErrorCode.NONE:
            self._touch(request.replica)
            size = member.log.snapshot_size(request.snapshot)
            if size is None:
                code = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < size:
                code = ErrorCode.POSITION_OUT_OF_RANGE
        answer = replace(
            member.answer(FetchSnapshotResponse, code),
            snapshot=request.snapshot,
            position=request.position,
            size=size or 0,
        )
        read = ReadSnapshot(request.snapshot, request.position, max(1, request.max_bytes))
        member.respond(token, answer, None if code is not ErrorCode.NONE else read)

    def advance(self) -> None:
        """Advance the high watermark to the offset that a majority of the voters has flushed."""
        member = self._member
        role = self._role
        offsets = sorted((self._flushed_by(voter) for voter in member.voters), reverse=True)
        if not offsets:
            return
        flushed = offsets[member.voters.majority - 1]
        # "Only log entries from the leader's current term are committed by counting replicas":
        # entries that an older leader left on a majority may still be truncated by a third one
        # (Raft 5.4.2, figure 8).
        if flushed > role.start_offset and member.commit(flushed):
            assert flushed <= member.log.end_offset, f"{flushed} is beyond our log"
            self._on_commit()

    def _flushed_by(self, voter: Voter) -> Offset:
        if voter.is_same(self._member.key):
            return self._member.log.flushed_offset
        replica = self.replica_of(voter)
        return Offset(-1) if replica is None else replica.offset

    def replica_of(self, voter: Voter) -> Replica | None:
        replicas = self._role.replicas
        if voter.directory_id is not None:
            return replicas.get(voter.key)
        found = [replica for key, replica in replicas.items() if voter.is_same(key)]
        return max(found, key=lambda replica: replica.last_seen, default=None)

    def poll(self) -> None:
        member = self._member
        role = member.role
        if not isinstance(role, Leader):
            return
        if member.now >= self._check_quorum_deadline(role):
            member.resign()
            return
        for key, held in list(role.held.items()):
            self._serve(key, held)
        self._begin_epoch(role)
        self._forget_observers(role)

    def _check_quorum_deadline(self, role: Leader) -> float:
        """Check-quorum: a leader without fetches from a majority resigns, so that its followers
        look for another leader."""
        member = self._member
        needed = member.voters.majority - member.is_voter
        if needed <= 0:
            return float("inf")
        times = [self._last_seen(role, voter) for voter in member.voters]
        others = [t for t, v in zip(times, member.voters, strict=True) if not v.is_same(member.key)]
        oldest_needed = sorted(others, reverse=True)[needed - 1]
        return oldest_needed + CHECK_QUORUM_FACTOR * member.settings.fetch_timeout_ms / 1000

    def lease(self) -> float | None:
        """If this node leads: the time until which no other member can lead. A voter that fetched
        from us waits for a fetch timeout before it votes for another candidate (KIP-996), and a
        majority must do so.

        No acknowledgement may depend on the lease: a member that has seen a later epoch spreads it
        at once, and voters can change.
        """
        member = self._member
        role = member.role
        if not isinstance(role, Leader):
            return None
        needed = member.voters.majority - member.is_voter
        if needed <= 0:
            return float("inf")
        replicas = [self.replica_of(voter) for voter in member.voters if voter.id != member.me.id]
        heard = sorted((one.last_heard for one in replicas if one is not None), reverse=True)
        if len(heard) < needed:
            return role.since
        return heard[needed - 1] + member.settings.fetch_timeout_ms / 1000

    def _last_seen(self, role: Leader, voter: Voter) -> float:
        replica = self.replica_of(voter)
        return role.since if replica is None else max(role.since, replica.last_seen)

    def _begin_epoch(self, role: Leader) -> None:
        """Send BeginQuorumEpoch to every voter that does not fetch from us."""
        member = self._member
        for voter in member.others():
            ask = role.begins.setdefault(voter.key, Ask())
            endpoint = member.endpoint_of(voter)
            if endpoint is None or member.now < self._begin_due(role, voter, ask):
                continue
            request = BeginQuorumEpochRequest(
                leader=member.me.id,
                epoch=member.epoch,
                endpoints=member.me.endpoints,
                voter=voter.key,
            )
            member.ask(ask, voter.id, endpoint, request)

    def _begin_due(self, role: Leader, voter: Voter, ask: Ask) -> float:
        replica = self.replica_of(voter)
        if replica is None:
            return ask.due
        return max(ask.due, replica.last_seen + self._begin_interval)

    @property
    def _begin_interval(self) -> float:
        return self._member.settings.fetch_timeout_ms / 1000

    def begun(self, request: BeginQuorumEpochRequest, response: Answer | None) -> None:
        """Process the response; None if the request failed."""
        member = self._member
        if response is not None:
            member.learn(response.epoch, response.leader, response.endpoint)
        if not isinstance(member.role, Leader) or request.epoch != member.epoch:
            return
        ask = member.role.begins.get(request.voter)
        if ask is None or ask.in_flight is not request:
            return
        ask.in_flight = None
        if response is not None and response.error is ErrorCode.NONE:
            ask.failures = 0
            ask.retry_at = member.now + self._begin_interval / 2
        else:
            wait = min(member.retry_backoff(ask.failures), self._begin_interval / 2)
            ask.retry_at = member.now + wait
            ask.failures += 1

    def _forget_observers(self, role: Leader) -> None:
        oldest = self._member.now - OBSERVER_SECONDS_MAX
        for key, replica in list(role.replicas.items()):
            if replica.last_seen < oldest and key not in self._member.voters:
                del role.replicas[key]

    def deadline(self) -> float:
        member = self._member
        role = member.role
        if not isinstance(role, Leader):
            return float("inf")
        dues = [self._check_quorum_deadline(role)]
        dues += [held.deadline for held in role.held.values()]
        for voter in member.others():
            if member.endpoint_of(voter) is not None:
                ask = role.begins.get(voter.key, Ask())
                dues.append(self._begin_due(role, voter, ask))
        return min(dues)
