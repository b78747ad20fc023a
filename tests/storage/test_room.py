"""A disk that was full: when it is said to have room again."""

import pytest

from riverrun.model.settings import GiB, MiB
from riverrun.storage.room import Room


@pytest.mark.parametrize(
    ("now_ms", "written", "free_bytes", "has_room"),
    [
        (2_000, 100, 65 * MiB, True),
        (2_000, 100, 64 * MiB, False),
        (1_999, 100, 65 * MiB, False),
        (9_999, 101, 1, False),
        (10_000, 101, 1, True),
        (99_000, 100, 1, False),
    ],
    ids=["room", "no margin", "refused lately", "taken once", "taken for long", "nobody writes"],
)
def test_room_is_believed(now_ms: int, written: int, free_bytes: int, has_room: bool) -> None:
    room = Room()
    assert room.refused(0)
    assert not room.look(1_000, 100, free_bytes=1, total_bytes=100 * GiB)
    found = room.look(now_ms, written, free_bytes=free_bytes, total_bytes=100 * GiB)
    assert found is has_room
    assert room.is_full is not has_room


def test_being_full_is_new_only_once() -> None:
    room = Room()
    assert [room.refused(0), room.refused(500)] == [True, False]
    assert room.look(9_000, 0, free_bytes=GiB, total_bytes=GiB)
    assert room.refused(10_000)


def test_a_small_disk_has_a_small_margin() -> None:
    room = Room()
    room.refused(0)
    assert room.look(5_000, 0, free_bytes=2 * MiB, total_bytes=100 * MiB)
