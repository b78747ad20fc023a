"""Whose metadata a directory holds, and what a node that lost some of it may do."""

from __future__ import annotations

from riverrun.metadata.bootstrap import check_sole_voter
from riverrun.metadata.quorum import MetadataError, Voter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.raft.messages import Response
from riverrun.raft.types import VoterSet


def gives_up_its_directory(
    loss: str, voters: VoterSet, me: Voter, *, may_vote: bool, knows_others: bool
) -> bool:
    """Whether a node that lost what it had synced must become another replica.

    What a voter acknowledged counts as stored by it; others may have built on that. So it must not
    speak for its directory again, and comes back under another id. Whether it was a voter is not
    asked: the record that made it one may be among what is lost, and another id is always safe.
    Whoever only observes has promised nothing. Raises ``MetadataError`` for a voter that has nobody
    to fetch from.
    """
    if not may_vote:
        return False
    if voters.ids == (me.id,) or (not len(voters) and not knows_others):
        raise MetadataError(loss)
    return True


def is_first_voter(
    voters: VoterSet, me: Voter, *, may_reach_others: bool, knows_others: bool, may_vote: bool
) -> bool:
    """Whether nobody votes yet, and this node is to be the only one who does.

    Raises ``MetadataError`` when the directory is not this node's to lead alone.
    """
    if len(voters) and (not may_reach_others or voters.ids == (me.id,)):
        check_sole_voter(voters.voters, me)
    return not len(voters) and not knows_others and may_vote


def check_answer(response: Response) -> None:
    if response.error is not ErrorCode.NONE:
        raise KafkaError(response.error, getattr(response, "message", None))
