"""Objects of logs are hidden from the garbage collector while the logs exist."""

from __future__ import annotations

import asyncio

from riverrun.server.garbage import LOGS_MIN, FrozenObjects
from tests.storage.machines import FixedClock
from tests.storage.virtual_loop import VirtualLoop, run


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
