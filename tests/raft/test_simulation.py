"""Whole quorums under random faults, with invariants checked after every effect, and the proof
that the checks find planted bugs."""

from __future__ import annotations

import time

import pytest

from tests.raft.faults import Story
from tests.raft.flaws import FLAWS
from tests.raft.invariants import Broken

pytestmark = pytest.mark.slow

SECONDS_MAX = 20.0
"""Wall-clock budget of all seeds together."""
SEEDS_MIN = 40
SEEDS_MAX = 400
STORY_SECONDS = 6.0


def test_quorums_are_safe_under_faults_and_live_after_them() -> None:
    begun = time.monotonic()
    elections = committed = 0
    for seed in range(SEEDS_MAX):
        if seed >= SEEDS_MIN and time.monotonic() - begun > SECONDS_MAX:
            break
        story = Story(seed)
        try:
            story.run(STORY_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        elections += story.world.invariants.elections
        committed += len(story.world.invariants.committed)
    assert elections > SEEDS_MIN * 2
    assert committed > SEEDS_MIN * 5


@pytest.mark.parametrize("name", [*FLAWS, "acknowledges before it is flushed"])
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(60):
        story = Story(seed, plant=FLAWS.get(name), acks_early=name not in FLAWS)
        try:
            story.run(STORY_SECONDS)
        except Broken:
            return
        except AssertionError:
            continue  # an assertion of the core was faster; the invariants must see the bug too
    pytest.fail(f"no seed shows that a core {name}")


def test_a_seed_determines_the_whole_run() -> None:
    def told(seed: int) -> list[str]:
        story = Story(seed)
        lines: list[str] = []
        story.world.listener = lambda now, node, effect: lines.append(
            f"{now} {node} {type(effect).__name__}"
        )
        story.run(2.0)
        return lines

    assert told(7) == told(7)
    assert told(7) != told(8)
