"""When a disk that was full counts as having space again."""

import pytest

from riverrun.model.settings import GiB, MiB
from riverrun.storage.space_monitor import SpaceMonitor


@pytest.mark.parametrize(
    ("now_ms", "end_offsets", "free_bytes", "has_space"),
    [
        (2_000, 100, 65 * MiB, True),
        (2_000, 100, 64 * MiB, False),
        (1_999, 100, 65 * MiB, False),
        (9_999, 101, 1, False),
        (10_000, 101, 1, True),
        (99_000, 100, 1, False),
    ],
    ids=["space", "no margin", "recent failure", "one append", "long quiet", "no appends"],
)
def test_disk_has_space_after_a_quiet_time(
    now_ms: int, end_offsets: int, free_bytes: int, has_space: bool
) -> None:
    monitor = SpaceMonitor()
    assert monitor.write_failed(0)
    assert not monitor.update(1_000, 100, free_bytes=1, total_bytes=100 * GiB)
    found = monitor.update(now_ms, end_offsets, free_bytes=free_bytes, total_bytes=100 * GiB)
    assert found is has_space
    assert monitor.is_full is not has_space


def test_only_the_first_failure_is_new() -> None:
    monitor = SpaceMonitor()
    assert [monitor.write_failed(0), monitor.write_failed(500)] == [True, False]
    assert monitor.update(9_000, 0, free_bytes=GiB, total_bytes=GiB)
    assert monitor.write_failed(10_000)


def test_small_disk_has_a_small_margin() -> None:
    monitor = SpaceMonitor()
    monitor.write_failed(0)
    assert monitor.update(5_000, 0, free_bytes=2 * MiB, total_bytes=100 * MiB)
