"""The follower's rules: fetch, truncate at a divergence, fetch a snapshot, find a leader, and
register this voter's endpoints with it.

One fetch is in flight at a time. The next one is sent when the whole log is flushed, because its
offset acknowledges everything before it as durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, Offset
from riverrun.raft.effects import Append, InstallSnapshot, Truncate, WriteSnapshot
from riverrun.raft.elections import Elections
from riverrun.raft.member import QuorumMember
from riverrun.raft.messages import (
    AddVoterRequest,
    ChangeVotersResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Response,
    UpdateVoterRequest,
)
from riverrun.raft.states import Ask, Follower, Prospective, Unattached
from riverrun.raft.types import Endpoint, EpochEnd, SnapshotId

FIRST_BOOTSTRAP: Final = -2
"""Bootstrap peers with unknown node ids are numbered downwards from here, as in Kafka."""
MEMBERSHIP_SECONDS: Final = 2.0
"""Pause between failed requests to become a voter or to update an endpoint."""
JOIN_TIMEOUT_MS: Final = 10_000

_NOT_THE_LEADER: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.BROKER_NOT_AVAILABLE,
)


class Download(Struct):
    """A snapshot that is partly fetched."""

    snapshot: SnapshotId
    position: int = 0


class Following:
    def __init__(
        self,
        member: QuorumMember,
        elections: Elections,
        bootstrap: Sequence[Endpoint],
        *,
        joins: bool,
    ) -> None:
        self._member = member
        self._elections = elections
        self._bootstrap = tuple(bootstrap)
        self._joins = joins
        self._place = 0
        self._fetch = Ask()
        self._membership = Ask()
        self._download: Download | None = None
        self._applying: FetchRequest | None = None
        self._leader_high_watermark = Offset(0)
        self._target: tuple[NodeId | None, int] = (None, -1)

    def poll(self) -> None:
        member = self._member
        role = member.role
        if isinstance(role, Follower) and not member.can_stand and self._is_late(role):
            member.become_unattached(member.epoch)
            role = member.role
        self._retarget()
        match role:
            case Follower() if not role.is_leader_gone:
                self._fetch_from(role.leader, role.endpoint)
                self._ask_for_membership(role)
            case Prospective(known_leader=leader, known_endpoint=endpoint):
                # The leader may only have been silent. If it responds, it is followed again.
                if leader is not None and endpoint is not None:
                    self._fetch_from(leader, endpoint)
            case Unattached():
                self._discover()
            case _:
                pass

    def _is_late(self, role: Follower) -> bool:
        return self._member.now >= role.deadline and not self._member.is_storing

    def _retarget(self) -> None:
        """Requests end with their epoch or leader; late responses are ignored."""
        member = self._member
        role = member.role
        leader = role.known_leader if isinstance(role, Prospective) else member.leader
        target = (leader, int(member.epoch))
        if target != self._target:
            self._target = target
            # Pause, so that an observer that keeps losing and finding the same leader does not
            # spin.
            self._fetch = Ask(failures=self._fetch.failures)
            if isinstance(role, Unattached) and self._fetch.failures:
                self._fetch.retry_at = member.now + member.retry_backoff(self._fetch.failures)
            self._membership = Ask()
            self._download = None
            self._leader_high_watermark = Offset(0)

    def _fetch_from(self, peer: NodeId, endpoint: Endpoint) -> None:
        member = self._member
        if not self._fetch.is_due(member.now) or member.is_storing:
            return
        if self._download is None:
            wait_ms = member.settings.fetch_timeout_ms // 2
            member.ask(self._fetch, peer, endpoint, self._request(wait_ms))
            return
        request = FetchSnapshotRequest(
            replica=member.key,
            epoch=member.epoch,
            snapshot=self._download.snapshot,
            position=self._download.position,
            max_bytes=member.settings.fetch_snapshot_bytes_max,
        )
        member.ask(self._fetch, peer, endpoint, request)

    def _request(self, max_wait_ms: int) -> FetchRequest:
        member = self._member
        assert member.log.flushed_offset == member.log.end_offset, "a fetch says: flushed"
        return FetchRequest(
            replica=member.key,
            epoch=member.epoch,
            fetch_offset=member.log.end_offset,
            last_fetched_epoch=member.log.last_epoch,
            max_wait_ms=max_wait_ms,
            max_bytes=member.settings.fetch_bytes_max,
            high_watermark=member.high_watermark,
        )

    def _discover(self) -> None:
        """Ask the peers one after the other. Any member that knows the leader names it in its error
        response."""
        member = self._member
        peers = self._peers()
        if not peers or not self._fetch.is_due(member.now) or member.is_storing:
            return
        self._place += 1
        peer, endpoint = peers[self._place % len(peers)]
        # Do not let the leader hold this fetch: we do not follow until it responds.
        member.ask(self._fetch, peer, endpoint, self._request(0))

    def _peers(self) -> list[tuple[NodeId, Endpoint]]:
        member = self._member
        known = [(voter.id, member.endpoint_of(voter)) for voter in member.others()]
        peers = [(node, endpoint) for node, endpoint in known if endpoint is not None]
        taken = [*member.me.endpoints.values(), *(endpoint for _, endpoint in peers)]
        for place, endpoint in enumerate(self._bootstrap):
            if endpoint not in taken:
                peers.append((NodeId(FIRST_BOOTSTRAP - place), endpoint))
        return peers

    def fetched(self, peer: NodeId, request: FetchRequest, response: FetchResponse) -> None:
        member = self._member
        is_current = self._fetch.in_flight is request
        if is_current:
            self._fetch.in_flight = None
        if not self._is_from_leader(peer, response) or not is_current:
            if is_current:
                self._pause()
            member.learn(response.epoch, response.leader, response.endpoint)
            return
        self._heard_from_leader(peer)
        if response.diverging is not None:
            self._truncate(response.diverging)
        elif response.snapshot is not None:
            self._begin_snapshot(response.snapshot)
        else:
            self._leader_high_watermark = response.high_watermark
            if response.data:
                member.is_applying = True
                self._applying = request
                member.out.append(Append(peer, request, response.data))
            else:
                self._follow_high_watermark()

    def _is_from_leader(self, peer: NodeId, response: Response) -> bool:
        """Whether our leader still acts as leader. If it does not, treat it as gone."""
        member = self._member
        role = member.role
        leader = role.known_leader if isinstance(role, Prospective) else member.leader
        if peer != leader or isinstance(role, Unattached) or response.epoch > member.epoch:
            return False
        if response.error is ErrorCode.NONE:
            return response.epoch == member.epoch
        if response.error in _NOT_THE_LEADER and response.leader != leader:
            # The leader restarted or resigned. It can never lead this epoch again.
            self._elections.lose_leader()
        elif response.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            self._download = None
        return False

    def _heard_from_leader(self, peer: NodeId) -> None:
        member = self._member
        if isinstance(member.role, Prospective):
            endpoint = member.role.known_endpoint
            assert endpoint is not None, "no peer was asked"
            member.become_follower(member.epoch, peer, endpoint)
        role = member.role
        assert isinstance(role, Follower), f"{role} fetches"
        role.has_fetched = True
        role.is_leader_gone = False
        role.deadline = member.now + member.fetch_timeout()
        self._fetch.failures = 0

    def _pause(self) -> None:
        self._fetch.retry_at = self._member.now + self._member.retry_backoff(self._fetch.failures)
        self._fetch.failures += 1

    def failed(
        self, peer: NodeId, request: FetchRequest | FetchSnapshotRequest, *, is_refused: bool
    ) -> None:
        """The request failed, or its response could not be stored."""
        member = self._member
        if self._applying is request:
            self._applying = None
            member.is_applying = False
            self._pause()
        elif self._fetch.in_flight is request:
            self._fetch.in_flight = None
            self._pause()
            if is_refused and peer == member.leader:
                self._elections.lose_leader()

    def _follow_high_watermark(self) -> None:
        end = self._member.log.end_offset
        self._member.commit(min(self._leader_high_watermark, end))

    def log_changed(self) -> None:
        self._applying = None
        if isinstance(self._member.role, Follower):
            self._follow_high_watermark()

    def flushed(self) -> None:
        """Time spent on our own disk does not count against the leader."""
        member = self._member
        if isinstance(member.role, Follower) and not member.role.is_leader_gone:
            member.role.deadline = member.now + member.fetch_timeout()

    def _truncate(self, diverging: EpochEnd) -> None:
        """Truncate to where both logs may still agree; the next fetch verifies it (KIP-595,
        KIP-101)."""
        member = self._member
        log = member.log
        local = log.epoch_end(diverging.epoch)
        if local is None:
            offset = log.start_offset
        elif local.epoch == diverging.epoch:
            offset = min(local.end, diverging.end)
        else:
            offset = local.end
        if offset >= log.end_offset:
            self._pause()  # An invalid response must not cause a busy loop
            return
        assert offset >= member.high_watermark, (
            f"the leader wants {offset} cut off, and {member.high_watermark} is committed"
        )
        self._leader_high_watermark = Offset(0)  # until a fetch shows that both logs agree
        member.is_applying = True
        member.out.append(Truncate(offset))

    def _begin_snapshot(self, snapshot: SnapshotId) -> None:
        member = self._member
        if snapshot.offset <= member.high_watermark or snapshot.epoch > member.epoch:
            self._pause()  # it would undo committed records
            return
        self._leader_high_watermark = Offset(0)  # until a fetch after the snapshot reports it
        self._download = Download(snapshot)

    def fetched_snapshot(
        self, peer: NodeId, request: FetchSnapshotRequest, response: FetchSnapshotResponse
    ) -> None:
        member = self._member
        is_current = self._fetch.in_flight is request
        if is_current:
            self._fetch.in_flight = None
        if not self._is_from_leader(peer, response) or not is_current:
            if is_current:
                self._pause()
            member.learn(response.epoch, response.leader, response.endpoint)
            return
        self._heard_from_leader(peer)
        download = self._download
        assert download is not None, "a part of no snapshot"
        end = download.position + len(response.data)
        is_part = (response.snapshot, response.position) == (request.snapshot, request.position)
        if not is_part or not response.data or end > response.size:
            self._download = None
            self._pause()
            return
        member.out.append(WriteSnapshot(download.snapshot, download.position, response.data))
        download.position = end
        if end == response.size:
            member.is_applying = True
            member.out.append(InstallSnapshot(download.snapshot))

    def snapshot_installed(self, snapshot: SnapshotId) -> None:
        member = self._member
        assert member.log.end_offset == snapshot.offset, f"the log ends at {member.log.end_offset}"
        self._download = None
        member.commit(snapshot.offset)
        self.flushed()

    def snapshot_failed(self) -> None:
        self._download = None
        self._pause()

    def _ask_for_membership(self, role: Follower) -> None:
        request = self._membership_request(role)
        if request is not None and self._membership.is_due(self._member.now):
            self._member.ask(self._membership, role.leader, role.endpoint, request)

    def _membership_request(
        self, role: Follower
    ) -> UpdateVoterRequest | AddVoterRequest | RemoveVoterRequest | None:
        """A voter with a new address updates its endpoint. A node that joins asks to be added,
        after its older directory was removed (KIP-853, KIP-1186)."""
        member = self._member
        me = member.me
        is_behind = member.is_storing or self._leader_high_watermark > member.high_watermark
        if not role.has_fetched or is_behind or member.is_stopping:
            return None  # our voter set may be outdated
        if not member.may_vote or not me.endpoints:
            return None
        known = member.voters.get(me.id)
        if known is not None and known.is_same(me.key):
            return None if known == me else UpdateVoterRequest(voter=me, epoch=member.epoch)
        if self._leader_high_watermark <= 0:
            return None  # the voters of a snapshot may include a vote that was removed since
        if known is not None:
            # A voter that lost its data votes again, even without auto-join.
            self._joins = True
            return RemoveVoterRequest(voter=known.key, timeout_ms=JOIN_TIMEOUT_MS)
        if not self._joins:
            return None
        # The change is committed only when we fetch it, so the response cannot wait for that.
        return AddVoterRequest(voter=me, timeout_ms=JOIN_TIMEOUT_MS, ack_when_committed=False)

    def membership_answered(
        self,
        request: UpdateVoterRequest | AddVoterRequest | RemoveVoterRequest,
        response: ChangeVotersResponse | None,
    ) -> None:
        if response is not None:
            self._member.learn(response.epoch, response.leader, response.endpoint)
        if self._membership.in_flight is request:
            self._membership.in_flight = None
            is_done = response is not None and response.error is ErrorCode.NONE
            wait = MEMBERSHIP_SECONDS / 10 if is_done else MEMBERSHIP_SECONDS
            self._membership.retry_at = self._member.now + wait

    def deadline(self) -> float:
        member = self._member
        role = member.role
        due = self._fetch.due if not member.is_storing else float("inf")
        match role:
            case Follower():
                mine = float("inf") if member.can_stand or member.is_storing else role.deadline
                if role.is_leader_gone:
                    return mine
                is_wish = self._membership_request(role) is not None
                wish = self._membership.due if is_wish else float("inf")
                return min(mine, due, wish)
            case Prospective():
                return due if role.known_leader is not None else float("inf")
            case Unattached():
                return due if self._peers() else float("inf")
            case _:
                return float("inf")
