"""Checks before a metadata directory is used: its owner, and the restrictions for a
node that lost records."""

from __future__ import annotations

from riverrun.metadata.bootstrap import check_sole_voter
from riverrun.metadata.quorum import MetadataError, Voter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.raft.messages import Response
from riverrun.raft.types import VoterSet


def gives_up_its_directory(
    loss: str, voters: VoterSet, me: Voter, *, may_vote: bool, knows_others: bool
) -> bool:
    """Whether a node that lost synced records must become another replica.

    Records that a voter acknowledged count as stored, and others may rely on them. So the node must
    not use its directory id again and returns with a new one. Whether it was a voter is not
    checked: the record that made it one may be lost, and a new id is always safe. A pure observer
    has acknowledged nothing. Raises ``MetadataError`` for a voter without peers to fetch from.
    """
    if not may_vote:
        return False
    if voters.ids == (me.id,) or (not len(voters) and not knows_others):
        raise MetadataError(loss)
    return True


def is_first_voter(
    voters: VoterSet, me: Voter, *, may_reach_others: bool, knows_others: bool, may_vote: bool
) -> bool:
    """Whether there are no voters yet and this node is to be the only one.

    Raises ``MetadataError`` if this node may not lead the directory's log alone.
    """
    if len(voters) and (not may_reach_others or voters.ids == (me.id,)):
        check_sole_voter(voters.voters, me)
    return not len(voters) and not knows_others and may_vote


def check_answer(response: Response) -> None:
    if response.error is not ErrorCode.NONE:
        raise KafkaError(response.error, getattr(response, "message", None))
