"""Objects of logs are hidden from the garbage collector while the logs exist."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

import pytest

from riverrun.server.garbage import (
    LOGS_MIN,
    PAUSE_SECONDS_MAX,
    THRESHOLDS,
    FrozenObjects,
    collect_less_often,
    without_collections,
)
from tests.storage.machines import FixedClock
from tests.storage.virtual_loop import VirtualLoop, run

PYTHON_THRESHOLD = 700


class Node:
    def __init__(self) -> None:
        self.logs = 5
        self.changes: list[str] = []
        self.frozen = FrozenObjects(
            lambda: self.logs,
            freeze=lambda: self.changes.append("freeze"),
            unfreeze=lambda: self.changes.append("unfreeze"),
        )


def test_objects_are_frozen_when_many_logs_were_created() -> None:
    node = Node()
    node.logs = LOGS_MIN
    node.frozen.check()
    assert node.changes == ["freeze"]
    node.logs += LOGS_MIN - 1
    node.frozen.check()
    assert node.changes == ["freeze"], "a collection of so few takes little time"
    node.logs += 1
    node.frozen.check()
    assert node.changes == ["freeze"] * 2


def test_objects_of_deleted_logs_are_unfrozen() -> None:
    node = Node()
    node.logs = 3 * LOGS_MIN
    node.frozen.check()
    node.logs = 2 * LOGS_MIN
    node.frozen.check()
    assert node.changes == ["freeze", "unfreeze"]


def test_checks_are_made_from_start_to_stop() -> None:
    node = Node()

    async def story(loop: VirtualLoop) -> None:
        node.frozen.start()
        node.frozen.freeze()
        node.logs += LOGS_MIN
        loop._pass_time(1.5)
        await asyncio.sleep(0.1)
        node.frozen.stop()
        node.logs += LOGS_MIN
        await asyncio.sleep(10)

    run(FixedClock(), story)
    assert node.changes == ["freeze", "freeze"], "at once, and by the timer"


class Collector:
    """The calls of one garbage collector."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def paused(self) -> AbstractContextManager[None]:
        return without_collections(
            freeze=lambda: self.calls.append("freeze"),
            disable=lambda: self.calls.append("disable"),
            enable=lambda: self.calls.append("enable"),
        )


def test_objects_that_were_loaded_are_frozen_before_the_next_collection() -> None:
    collector = Collector()

    async def story(_: VirtualLoop) -> None:
        with collector.paused():
            assert collector.calls == ["disable"]
        await asyncio.sleep(2 * PAUSE_SECONDS_MAX)

    run(FixedClock(), story)
    assert collector.calls == ["disable", "freeze", "enable"]


def test_long_loading_does_not_keep_garbage() -> None:
    collector = Collector()

    async def story(_: VirtualLoop) -> None:
        with collector.paused():
            await asyncio.sleep(PAUSE_SECONDS_MAX - 1)
            assert collector.calls == ["disable"]
            await asyncio.sleep(2)
            assert collector.calls == ["disable", "freeze", "enable"]

    run(FixedClock(), story)


def test_garbage_is_collected_again_after_loading_failed() -> None:
    collector = Collector()

    async def story(_: VirtualLoop) -> None:
        with pytest.raises(OSError, match="no disk"), collector.paused():
            raise OSError("no disk")

    run(FixedClock(), story)
    assert collector.calls == ["disable", "freeze", "enable"]


def test_a_node_collects_less_often_than_python_does() -> None:
    given: list[tuple[int, int, int]] = []
    collect_less_often(lambda *thresholds: given.append(thresholds))
    assert given == [THRESHOLDS]
    assert THRESHOLDS[0] > PYTHON_THRESHOLD
