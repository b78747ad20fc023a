"""The checkpoint that proves a loss of metadata must never prove one that did not happen."""

from pathlib import Path

import pytest

from riverrun.metadata.flushed import NAME, FlushedOffset
from riverrun.model.ids import Offset
from riverrun.ports.files import OsFiles


@pytest.mark.parametrize(("old", "new"), [(114, 122), (99, 100), (10**19, 9), (0, 10**19 + 7)])
def test_a_torn_write_is_detected(tmp_path: Path, old: int, new: int) -> None:
    """The 12 of 122 before the 4 of 114 once made a sound voter give up its directory."""
    written = []
    flushed = FlushedOffset(OsFiles(), str(tmp_path))
    for offset in (old, new):
        flushed.write(Offset(offset))
        written.append((tmp_path / NAME).read_bytes())
    before, after = written
    for torn in range(len(after) + 1):
        for mixed in (after[:torn] + before[torn:], before[:torn] + after[torn:], after[:torn]):
            (tmp_path / NAME).write_bytes(mixed)
            assert flushed.read() in (0, old, new), mixed


def test_what_was_written_is_read(tmp_path: Path) -> None:
    flushed = FlushedOffset(OsFiles(), str(tmp_path))
    assert flushed.read() == 0
    flushed.write(Offset(122))
    assert FlushedOffset(OsFiles(), str(tmp_path)).read() == 122
    assert flushed.missing(Offset(122)) is None
    assert "flushed up to 122" in (flushed.missing(Offset(121)) or "")
    flushed.lower(Offset(121))
    assert flushed.missing(Offset(121)) is None
