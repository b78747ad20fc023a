"""Voter changes, made by the leader one at a time (KIP-853).

A change begins only when a record of the leader's own epoch is committed and no other change is
pending. Otherwise two leaders could each change the same old voter set and both find a majority
(the known flaw of Raft's first single-server changes). A new voter must have caught up first,
because otherwise every commit would wait for it.
"""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.raft.effects import AppendControl, SetVoters
from riverrun.raft.leading import Leading
from riverrun.raft.member import QuorumMember
from riverrun.raft.messages import (
    AddVoterRequest,
    ChangeVotersResponse,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from riverrun.raft.states import Change, Leader
from riverrun.raft.types import KRAFT_VERSION, VoterSet

ChangeRequest = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest


class Changes:
    def __init__(self, member: QuorumMember, leading: Leading) -> None:
        self._member = member
        self._leading = leading

    def begin(self, request: ChangeRequest, token: object) -> None:
        member = self._member
        role = member.role
        if not isinstance(role, Leader):
            self._answer(token, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if isinstance(request, UpdateVoterRequest) and request.epoch != member.epoch:
            is_old = request.epoch < member.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            self._answer(token, code)
            return
        if self._is_busy(role):
            self._answer(
                token,
                ErrorCode.REQUEST_TIMED_OUT,
                "the leader has just been elected, or another change of voters is under way",
            )
            return
        code, message = self._judge(request)
        if code is not ErrorCode.NONE or message is not None:
            self._answer(token, code, message)
            return
        timeout_ms = member.settings.request_timeout_ms
        if not isinstance(request, UpdateVoterRequest):
            timeout_ms = request.timeout_ms
        role.change = Change(request=request, token=token, deadline=member.now + timeout_ms / 1000)

    def _is_busy(self, role: Leader) -> bool:
        member = self._member
        is_settled = member.high_watermark > role.start_offset
        is_committed = member.log.voters.offset < member.high_watermark
        return role.change is not None or not is_settled or not is_committed

    def _judge(self, request: ChangeRequest) -> tuple[ErrorCode, str | None]:
        """A message without an error means that nothing has to change."""
        voters = self._member.voters
        match request:
            case AddVoterRequest(voter=voter):
                if voter.id < 0 or voter.directory_id is None or not voter.endpoints:
                    return ErrorCode.INVALID_REQUEST, "a voter has id, directory id and endpoints"
                if voters.get(voter.id) is not None:
                    return ErrorCode.DUPLICATE_VOTER, f"node {voter.id} votes already"
            case RemoveVoterRequest(voter=key):
                known = voters.get(key.id)
                if known is None or known.directory_id != key.directory_id:
                    return ErrorCode.VOTER_NOT_FOUND, f"{key.id} with this directory does not vote"
                if len(voters) == 1:
                    return ErrorCode.INVALID_REQUEST, "the last voter cannot be removed"
            case UpdateVoterRequest(voter=voter):
                known = voters.get(voter.id)
                if known is None or not known.is_same(voter.key):
                    return ErrorCode.VOTER_NOT_FOUND, f"node {voter.id} does not vote"
                if not voter.kraft_versions[0] <= KRAFT_VERSION <= voter.kraft_versions[1]:
                    return ErrorCode.INVALID_UPDATE_VERSION, "kraft.version is not supported there"
                if not voter.endpoints:
                    return ErrorCode.INVALID_REQUEST, "a voter has endpoints"
                if known == voter:
                    return ErrorCode.NONE, "nothing to change"
        return ErrorCode.NONE, None

    def poll(self) -> None:
        member = self._member
        role = member.role
        if not isinstance(role, Leader):
            return
        if role.change is None:
            self._update_self(role)
        change = role.change
        if change is None:
            return
        if not change.is_appended:
            if self._is_ready(change):
                change.is_appended = True
                member.is_applying = True
                member.out.append(AppendControl(member.epoch, (SetVoters(self._after(change)),)))
            elif member.now >= change.deadline:
                role.change = None
                self._answer(
                    change.token, ErrorCode.REQUEST_TIMED_OUT, "the new voter did not catch up"
                )
        elif member.now >= change.deadline and change.token is not None:
            # It stays in the log and may still be committed.
            self._answer(change.token, ErrorCode.REQUEST_TIMED_OUT)
            change.token = None

    def _update_self(self, role: Leader) -> None:
        """A leader whose address differs from the voter set corrects that itself."""
        member = self._member
        known = member.voters.get(member.me.id)
        if known is None or not known.is_same(member.key) or not member.me.endpoints:
            return
        if known != member.me and not self._is_busy(role) and not member.is_stopping:
            request = UpdateVoterRequest(voter=member.me, epoch=member.epoch)
            role.change = Change(request=request, token=None, deadline=float("inf"))

    def _is_ready(self, change: Change) -> bool:
        if not isinstance(change.request, AddVoterRequest):
            return True
        replica = self._leading.replica_of(change.request.voter)
        if replica is None or replica.last_caught_up is None:
            return False
        timeout = self._member.settings.fetch_timeout_ms / 1000
        return replica.last_caught_up >= self._member.now - timeout

    def _after(self, change: Change) -> VoterSet:
        voters = self._member.voters
        match change.request:
            case AddVoterRequest(voter=voter):
                return voters.adding(voter)
            case RemoveVoterRequest(voter=key):
                known = voters.get(key.id)
                assert known is not None, f"{key} does not vote"
                return VoterSet(tuple(voter for voter in voters if voter.id != known.id))
            case UpdateVoterRequest(voter=voter):
                return voters.updating(voter)

    def log_changed(self) -> None:
        """The record is in the log: the new voters count from now on."""
        role = self._member.role
        if not isinstance(role, Leader) or role.change is None:
            return
        change = role.change
        if change.is_appended and change.offset is None:
            change.offset = self._member.log.voters.offset
            request = change.request
            if isinstance(request, AddVoterRequest) and not request.ack_when_committed:
                self._answer(change.token, ErrorCode.NONE)
                change.token = None

    def committed(self) -> None:
        """The high watermark advanced."""
        member = self._member
        role = member.role
        assert isinstance(role, Leader), f"{role} commits"
        change = role.change
        if change is not None and change.offset is not None:
            is_done = change.offset < member.high_watermark
            role.change = None if is_done else change
            if is_done:
                self._answer(change.token, ErrorCode.NONE)
        if not member.is_voter and member.log.voters.offset < member.high_watermark:
            # "The leader steps down once C_new is committed" (Raft thesis 4.2.2).
            member.resign()

    def _answer(self, token: object | None, code: ErrorCode, message: str | None = None) -> None:
        if token is not None:
            answer = self._member.answer(ChangeVotersResponse, code)
            self._member.respond(token, replace(answer, message=message))

    def deadline(self) -> float:
        role = self._member.role
        if not isinstance(role, Leader) or role.change is None:
            return float("inf")
        change = role.change
        return (
            change.deadline if change.token is not None or not change.is_appended else float("inf")
        )
