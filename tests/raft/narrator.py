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
from riverrun.raft.types import NOBODY


def sentence(effect: do.Effect) -> str | None:
    """The action of a node, without its subject; None if a transcript does not need it."""
    match effect:
        case do.Persist(state=state):
            if state.leader != NOBODY:
                return f"stores: {state.leader} leads epoch {state.epoch}"
            if state.voted != NOBODY:
                return f"stores: its vote in epoch {state.epoch} is for {state.voted}"
            return f"stores: epoch {state.epoch} has begun"
        case do.Send(peer=peer, request=request):
            return _sent(peer, request)
        case do.Respond(response=response):
            return _responded(response)
        case do.AppendControl(records=records):
            return "appends " + " and ".join(_control(record) for record in records)
        case do.Append():
            return "appends what it fetched"
        case do.Truncate(offset=offset):
            return f"cuts its log at {offset}"
        case do.WriteSnapshot(position=position):
            return f"writes snapshot bytes from {position}"
        case do.InstallSnapshot(snapshot=snapshot):
            return f"installs snapshot {snapshot.offset}-{snapshot.epoch}"
        case do.Committed(high_watermark=high_watermark):
            return f"knows that all before {high_watermark} is committed"
        case do.BecameLeader(epoch=epoch, start_offset=start):
            return f"LEADS epoch {epoch} from offset {start}"
        case do.LostLeadership(epoch=epoch):
            return f"LEADS epoch {epoch} NO MORE"
        case do.Follows(leader=leader, epoch=epoch):
            return f"{'has no leader' if leader is None else f'follows {leader}'} in epoch {epoch}"
        case do.Flush():
            return None


def _sent(peer: NodeId, request: Request) -> str | None:
    match request:
        case VoteRequest(pre_vote=True):
            log = f"its log ends at {request.end_offset} in epoch {request.last_epoch}"
            return f"asks {peer} whether it would get its vote ({log})"
        case VoteRequest():
            return f"asks {peer} for its vote in epoch {request.epoch}"
        case BeginQuorumEpochRequest():
            return f"tells {peer} that it leads epoch {request.epoch}"
        case EndQuorumEpochRequest():
            names = ", ".join(str(key.id) for key in request.successors)
            return f"tells {peer} that it resigns; best to follow: {names or 'nobody'}"
        case FetchRequest():
            return f"fetches {request.fetch_offset} from {peer}"
        case FetchSnapshotRequest():
            snapshot = request.snapshot
            return f"fetches snapshot {snapshot.offset}-{snapshot.epoch} from {peer}"
        case AddVoterRequest():
            return f"asks {peer} to become a voter"
        case RemoveVoterRequest():
            return f"asks {peer} to remove the voter {request.voter.id} of another directory"
        case UpdateVoterRequest():
            return f"tells {peer} where it is reached now"


def _responded(response: Response) -> str | None:
    said = "" if response.error is ErrorCode.NONE else f": {response.error.name}"
    match response:
        case VoteResponse():
            if response.error is ErrorCode.NONE:
                return "says yes" if response.granted else "says no"
            return f"refuses to vote{said}"
        case FetchResponse(diverging=diverging, snapshot=snapshot):
            if diverging is not None:
                return (
                    f"answers: your log diverges; epoch {diverging.epoch} ends at {diverging.end}"
                )
            if snapshot is not None:
                return f"answers: fetch snapshot {snapshot.offset}-{snapshot.epoch} first"
            return f"refuses a fetch{said}" if said else None
        case ChangeVotersResponse(message=message):
            why = f" ({message})" if message else ""
            return f"answers the change of voters{said or ': done'}{why}"
        case _:
            return None


def _control(record: do.ControlRecord) -> str:
    if isinstance(record, do.LeaderChange):
        granted = ", ".join(str(node) for node in record.granting)
        return f"that it leads, by the votes of {granted}"
    return "that the voters are " + ", ".join(str(node) for node in record.voters.ids)
