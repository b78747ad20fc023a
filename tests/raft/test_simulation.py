"""Whole quorums under random faults, with what must hold checked after every effect; and the proof
that the checks see bugs."""

from __future__ import annotations

import time

import pytest

from tests.raft.faults import Story
from tests.raft.flaws import FLAWS
from tests.raft.invariants import Broken

SECONDS_MAX = 20.0
"""Of real time for all seeds together; the simulation of the whole broker plays more."""
SEEDS_MIN = 40
SEEDS_MAX = 400
STORY_SECONDS = 6.0


def test_quorums_keep_their_promises_under_faults_and_agree_when_these_stop() -> None:
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
            continue  # an assertion of the core itself was quicker; the checks shall see it too
    pytest.fail(f"no seed shows that a core {name}")


def test_a_seed_is_the_whole_story() -> None:
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
