"""The quorum's files and control records, as Kafka writes them."""

from pathlib import Path
from uuid import UUID

import pytest

from riverrun.metadata.bootstrap import check_sole_voter, first_records
from riverrun.metadata.quorum import (
    MetadataError,
    QuorumState,
    Voter,
    leader_change,
    read_quorum_state,
    read_voters,
    voters_record,
    write_quorum_state,
)
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.files import OsFiles
from riverrun.records.record import ControlType

ME = Voter(id=NodeId(1), directory_id=UUID(int=9), endpoints={"CONTROLLER": ("h", 9093)})


def test_quorum_state_has_kafkas_text_format(tmp_path: Path) -> None:
    state = QuorumState(epoch=LeaderEpoch(2), leader=NodeId(1))
    # From a directory created by Kafka 4.3.1.
    text = (
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
        '"data_version":1}'
    )
    assert state.text() == text
    assert QuorumState.parse(text) == state
    files = OsFiles()
    assert read_quorum_state(files, str(tmp_path)) is None
    write_quorum_state(files, str(tmp_path), state)
    assert (tmp_path / "quorum-state").read_text() == text
    assert read_quorum_state(files, str(tmp_path)) == state


def test_quorum_state_of_version_0_is_read() -> None:
    text = (
        '{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    expected = QuorumState(epoch=LeaderEpoch(3), leader=NodeId(1), voted=NodeId(1))
    assert QuorumState.parse(text) == expected


def test_a_vote_is_remembered_with_its_directory() -> None:
    state = QuorumState(epoch=LeaderEpoch(5), voted=NodeId(2), voted_directory=UUID(int=12345))
    assert QuorumState.parse(state.text()) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"leaderId":1}', '{"leaderEpoch":"x"}'])
def test_an_unreadable_quorum_state_is_rejected_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(MetadataError, match="restore it from a copy"):
        read_quorum_state(OsFiles(), str(tmp_path))


def test_voters_round_trip() -> None:
    other = Voter(id=NodeId(2), directory_id=None, endpoints={}, kraft_versions=(0, 0))
    record = voters_record((ME, other), now_ms=3)
    assert ControlType.of(record.key) is ControlType.KRAFT_VOTERS
    assert read_voters(record.value or b"") == (ME, other)


def test_the_leader_change_names_all_voters() -> None:
    record = leader_change(ME.id, (ME.id,), (ME.id,), now_ms=3)
    assert ControlType.of(record.key) is ControlType.LEADER_CHANGE
    # Written by Kafka 4.3.1 on a single node.
    assert record.value == bytes.fromhex("00000000000102000000010002000000010000")


def test_a_node_leads_alone_only_as_sole_voter() -> None:
    moved = Voter(id=ME.id, directory_id=ME.directory_id, endpoints={"CONTROLLER": ("x", 1)})
    check_sole_voter((ME,), ME)
    check_sole_voter((moved,), ME)
    with pytest.raises(MetadataError, match="voted on by 1, 2"):
        check_sole_voter((ME, Voter(id=NodeId(2), directory_id=None)), ME)
    with pytest.raises(MetadataError, match="of different nodes"):
        check_sole_voter((Voter(id=ME.id, directory_id=UUID(int=8)),), ME)


def test_a_new_log_starts_with_its_metadata_version() -> None:
    records = first_records()
    assert getattr(records[0], "name", None) == "metadata.version"
    assert getattr(records[0], "feature_level", None) == 30
