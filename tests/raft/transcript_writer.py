"""Describes in words what quorum members do, for readable transcripts."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.raft import effects as do
from riverrun.raft.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    ChangeVotersResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    Response,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from riverrun.raft.types import NO_NODE


def sentence(effect: do.Effect) -> str | None:
    """The action of a node, without its subject; None if a transcript does not need it."""
    match effect:
        case do.Persist(state=state):
            if state.leader != NO_NODE:
                return f"persists: {state.leader} leads epoch {state.epoch}"
            if state.voted != NO_NODE:
                return f"persists: vote for {state.voted} in epoch {state.epoch}"
            return f"persists: epoch {state.epoch}"
        case do.Send(peer=peer, request=request):
            return _sent(peer, request)
        case do.Respond(response=response):
            return _responded(response)
        case do.AppendControl(records=records):
            return "appends " + " and ".join(_control(record) for record in records)
        case do.Append():
            return "appends the fetched records"
        case do.Truncate(offset=offset):
            return f"truncates its log at {offset}"
        case do.WriteSnapshot(position=position):
            return f"writes snapshot bytes from {position}"
        case do.InstallSnapshot(snapshot=snapshot):
            return f"installs snapshot {snapshot.offset}-{snapshot.epoch}"
        case do.Committed(high_watermark=high_watermark):
            return f"advances its high watermark to {high_watermark}"
        case do.BecameLeader(epoch=epoch, start_offset=start):
            return f"LEADS epoch {epoch} from offset {start}"
        case do.LostLeadership(epoch=epoch):
            return f"STOPS LEADING epoch {epoch}"
        case do.Follows(leader=leader, epoch=epoch):
            return f"{'has no leader' if leader is None else f'follows {leader}'} in epoch {epoch}"
        case do.Flush():
            return None


def _sent(peer: NodeId, request: Request) -> str | None:
    match request:
        case VoteRequest(pre_vote=True):
            log = f"its log ends at {request.end_offset} in epoch {request.last_epoch}"
            return f"sends a pre-vote to {peer} ({log})"
        case VoteRequest():
            return f"requests the vote of {peer} in epoch {request.epoch}"
        case BeginQuorumEpochRequest():
            return f"announces to {peer} that it leads epoch {request.epoch}"
        case EndQuorumEpochRequest():
            names = ", ".join(str(key.id) for key in request.successors)
            return f"announces to {peer} that it resigns; successors: {names or 'none'}"
        case FetchRequest():
            return f"fetches {request.fetch_offset} from {peer}"
        case FetchSnapshotRequest():
            snapshot = request.snapshot
            return f"fetches snapshot {snapshot.offset}-{snapshot.epoch} from {peer}"
        case AddVoterRequest():
            return f"asks {peer} to add it as a voter"
        case RemoveVoterRequest():
            return f"asks {peer} to remove the voter {request.voter.id} of another directory"
        case UpdateVoterRequest():
            return f"sends its endpoint to {peer}"


def _responded(response: Response) -> str | None:
    said = "" if response.error is ErrorCode.NONE else f": {response.error.name}"
    match response:
        case VoteResponse():
            if response.error is ErrorCode.NONE:
                return "grants the vote" if response.granted else "rejects the vote"
            return f"rejects the vote{said}"
        case FetchResponse(diverging=diverging, snapshot=snapshot):
            if diverging is not None:
                return (
                    f"responds: the log diverges; epoch {diverging.epoch} ends at {diverging.end}"
                )
            if snapshot is not None:
                return f"responds: fetch snapshot {snapshot.offset}-{snapshot.epoch} first"
            return f"rejects a fetch{said}" if said else None
        case ChangeVotersResponse(message=message):
            why = f" ({message})" if message else ""
            return f"responds to the voter change{said or ': done'}{why}"
        case _:
            return None


def _control(record: do.ControlRecord) -> str:
    if isinstance(record, do.LeaderChange):
        granted = ", ".join(str(node) for node in record.granting)
        return f"a leader change with the votes of {granted}"
    return "the voter set " + ", ".join(str(node) for node in record.voters.ids)
