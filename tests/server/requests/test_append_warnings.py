"""Failed appends are logged at a limited rate."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.ports.aio import LogLimiter
from riverrun.server.requests import produce


class FixedClock:
    def now_ms(self) -> int:
        return 5000

    def monotonic(self) -> float:
        return 5.0


def test_failed_append_is_logged_once_per_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, str]] = []
    fake = SimpleNamespace(warning=lambda event, **fields: lines.append({"event": event, **fields}))
    monkeypatch.setattr(produce, "log", fake)
    services: Any = SimpleNamespace(
        append_warnings=LogLimiter(FixedClock(), interval_seconds=10.0), clock=FixedClock()
    )
    partition: Any = SimpleNamespace(name="orders-3")
    for _ in range(3):
        produce._warn(services, partition, OSError(errno.ENOSPC, "No space left on device"))
    assert [(line["event"], line["partition"]) for line in lines] == [("append failed", "orders-3")]
