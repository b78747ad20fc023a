"""Whole quorums under random faults, with invariants checked after every effect, and the proof
that the checks find planted bugs."""

from __future__ import annotations

import time

import pytest

from tests.raft.faults import SeededRun
from tests.raft.invariants import Broken
from tests.raft.planted_bugs import PLANTED_BUGS

pytestmark = pytest.mark.slow

SECONDS_MAX = 20.0
"""Wall-clock budget of all seeds together."""
SEEDS_MIN = 40
SEEDS_MAX = 400
RUN_SECONDS = 6.0


def test_quorums_are_safe_under_faults_and_live_after_them() -> None:
    begun = time.monotonic()
    elections = committed = 0
    for seed in range(SEEDS_MAX):
        if seed >= SEEDS_MIN and time.monotonic() - begun > SECONDS_MAX:
            break
        run = SeededRun(seed)
        try:
            run.run(RUN_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        elections += run.world.invariants.elections
        committed += len(run.world.invariants.committed)
    assert elections > SEEDS_MIN * 2
    assert committed > SEEDS_MIN * 5


@pytest.mark.parametrize("name", [*PLANTED_BUGS, "acknowledges before it is flushed"])
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(60):
        run = SeededRun(seed, plant=PLANTED_BUGS.get(name), acks_early=name not in PLANTED_BUGS)
        try:
            run.run(RUN_SECONDS)
        except Broken:
            return
        except AssertionError:
            continue  # an assertion of the core was faster; the invariants must see the bug too
    pytest.fail(f"no seed shows that a core {name}")


def test_a_seed_determines_the_whole_run() -> None:
    def events_of(seed: int) -> list[str]:
        run = SeededRun(seed)
        lines: list[str] = []
        run.world.listener = lambda now, node, effect: lines.append(
            f"{now} {node} {type(effect).__name__}"
        )
        run.run(2.0)
        return lines

    assert events_of(7) == events_of(7)
    assert events_of(7) != events_of(8)
