"""Warnings that are shown once in a while."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.server.requests import produce
from riverrun.server.sparing import INTERVAL_SECONDS, SUBJECTS_MAX, Sparing


def test_each_subject_is_spoken_of_once_in_a_while() -> None:
    sparing = Sparing()
    times = (0.0, 0.1, INTERVAL_SECONDS - 0.1, INTERVAL_SECONDS, INTERVAL_SECONDS + 1)
    assert [sparing.may("a-0", now) for now in times] == [True, False, False, True, False]
    assert sparing.may("b-0", INTERVAL_SECONDS)


def test_subjects_are_limited_until_old_ones_are_forgotten() -> None:
    sparing = Sparing()
    assert all(sparing.may(str(number), 0.0) for number in range(SUBJECTS_MAX))
    assert not sparing.may("one more", 1.0)
    assert sparing.may("one more", INTERVAL_SECONDS)


def test_an_append_that_the_disk_refused_is_told_once_by_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[dict[str, str]] = []
    fake = SimpleNamespace(warning=lambda event, **fields: lines.append({"event": event, **fields}))
    monkeypatch.setattr(produce, "log", fake)
    services: Any = SimpleNamespace(
        append_warnings=Sparing(), clock=SimpleNamespace(monotonic=lambda: 5.0)
    )
    partition: Any = SimpleNamespace(name="orders-3")
    for _ in range(3):
        produce._warn(services, partition, OSError(errno.ENOSPC, "No space left on device"))
    reason = "[Errno 28] No space left on device"
    assert lines == [{"event": "append failed", "partition": "orders-3", "reason": reason}]
