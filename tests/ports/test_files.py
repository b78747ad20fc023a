"""OsFiles, the real file system."""

from pathlib import Path

import pytest

from riverrun.ports.files import OsFiles, ReadBuffers, read_whole, write_atomically


def test_written_bytes_are_read_back(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.write_at(0, b"0123456789")
    file.write_at(4, bytearray(b"xx"))
    assert file.read_at(2, 6) == b"23xx67"
    assert bytes(file.read_cached_at(2, 6) or b"") == b"23xx67"
    assert file.read_at(8, 100) == b"89"
    assert bytes(file.read_cached_at(8, 100) or b"") == b"89"
    file.truncate(3)
    assert (file.size(), file.read_at(0, 10)) == (3, b"012")
    file.close()


def test_open_does_not_create_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsFiles().open(str(tmp_path / "f"))


def test_lock_is_held_until_released(tmp_path: Path) -> None:
    files = OsFiles()
    lock = files.lock(str(tmp_path / ".lock"))
    with pytest.raises(BlockingIOError):
        files.lock(str(tmp_path / ".lock"))
    lock.release()
    files.lock(str(tmp_path / ".lock")).release()


def test_write_atomically_replaces_the_file(tmp_path: Path) -> None:
    files, path = OsFiles(), str(tmp_path / "f")
    write_atomically(files, path, b"old and longer")
    write_atomically(files, path, b"new")
    assert read_whole(files, path) == b"new"
    assert files.list_directory(str(tmp_path)) == ["f"]


def test_read_buffer_is_reused_when_no_view_of_it_remains() -> None:
    buffers = ReadBuffers()
    view = memoryview(buffers.take(100_000))[:10]
    first = id(view.obj)
    other = buffers.take(100_000)
    assert id(other) != first
    view.release()
    del view
    assert id(buffers.take(100_000)) == first


def test_results_of_reads_keep_their_bytes(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.write_at(0, b"".join(bytes([n]) * 50_000 for n in range(20)))
    held = [file.read_cached_at(n * 50_000, 50_000) for n in range(20)]
    assert [bytes(data or b"")[:2] for data in held] == [bytes([n, n]) for n in range(20)]
    file.close()
