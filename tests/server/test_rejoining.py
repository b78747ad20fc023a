"""The stored intention of a voter to rejoin."""

from pathlib import Path

from riverrun.model.ids import NodeId
from riverrun.ports.files import OsFiles
from riverrun.server.quorum.rejoining import NAME, Rejoining


def test_intention_survives_a_restart_until_it_is_deleted(tmp_path: Path) -> None:
    Rejoining(OsFiles(), str(tmp_path), NodeId(3)).intend()
    again = Rejoining(OsFiles(), str(tmp_path), NodeId(3))
    assert again.is_intended
    again.forget()
    assert not Rejoining(OsFiles(), str(tmp_path), NodeId(3)).is_intended


def test_intention_is_stored_again_after_its_directory_was_deleted(tmp_path: Path) -> None:
    Rejoining(OsFiles(), str(tmp_path), NodeId(3)).intend()
    again = Rejoining(OsFiles(), str(tmp_path), NodeId(3))
    (tmp_path / NAME).unlink()
    again.intend()
    assert (tmp_path / NAME).exists()
    (tmp_path / NAME).unlink()
    again.forget()
    assert not again.is_intended
