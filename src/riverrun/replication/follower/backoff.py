"""Pauses after errors: short at first, doubling, and not the same for all who failed at once."""

from __future__ import annotations

from riverrun.ports.randomness import Randomness

FIRST_SECONDS = 0.02
JITTER = 0.2
DOUBLINGS_MAX = 16


def pause_seconds(attempts: int, max_seconds: float, randomness: Randomness) -> float:
    """How long to wait after so many errors in a row."""
    exact: float = min(FIRST_SECONDS * 2 ** min(attempts, DOUBLINGS_MAX), max_seconds)
    return exact * randomness.between(1 - JITTER, 1 + JITTER)
