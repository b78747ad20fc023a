"""Which nodes must become another replica after they lost synced records."""

from __future__ import annotations

from uuid import UUID

import pytest

from riverrun.metadata.opening import gives_up_its_directory
from riverrun.metadata.quorum import MetadataError, Voter
from riverrun.model.ids import NodeId
from riverrun.raft.types import VoterSet

ME = Voter(id=NodeId(1), directory_id=UUID(int=1))
OTHERS = tuple(Voter(id=NodeId(n), directory_id=UUID(int=n)) for n in (2, 3))
NO_VOTERS = VoterSet(())
ALL = VoterSet((ME, *OTHERS))
WITHOUT_ME = VoterSet(OTHERS)


@pytest.mark.parametrize(
    "voters", [ALL, WITHOUT_ME, NO_VOTERS], ids=["a voter", "perhaps a voter", "voters unknown"]
)
def test_a_possible_voter_gives_up_its_directory_id(voters: VoterSet) -> None:
    assert gives_up_its_directory("lost", voters, ME, may_vote=True, knows_others=True)


def test_an_observer_keeps_its_directory_id() -> None:
    assert not gives_up_its_directory("lost", ALL, ME, may_vote=False, knows_others=True)


@pytest.mark.parametrize("voters", [VoterSet((ME,)), NO_VOTERS], ids=["alone", "no voters known"])
def test_a_node_without_peers_is_rejected(voters: VoterSet) -> None:
    with pytest.raises(MetadataError, match="lost"):
        gives_up_its_directory("lost", voters, ME, may_vote=True, knows_others=False)
