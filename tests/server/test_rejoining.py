"""The intention to vote again survives whatever happens to the log that it lies beside."""

from pathlib import Path

from riverrun.model.ids import NodeId
from riverrun.ports.files import OsFiles
from riverrun.server.quorum.rejoining import NAME, Rejoining


def test_an_intention_is_there_for_the_next_life_until_it_is_forgotten(tmp_path: Path) -> None:
    Rejoining(OsFiles(), str(tmp_path), NodeId(3)).intend()
    again = Rejoining(OsFiles(), str(tmp_path), NodeId(3))
    assert again.is_intended
    again.forget()
    assert not Rejoining(OsFiles(), str(tmp_path), NodeId(3)).is_intended


def test_an_intention_that_went_with_a_damaged_log_is_renewed_and_forgotten(tmp_path: Path) -> None:
    Rejoining(OsFiles(), str(tmp_path), NodeId(3)).intend()
    again = Rejoining(OsFiles(), str(tmp_path), NodeId(3))
    (tmp_path / NAME).unlink()
    again.intend()
    assert (tmp_path / NAME).exists()
    (tmp_path / NAME).unlink()
    again.forget()
    assert not again.is_intended
