"""Worlds that are closed after each test."""

from collections.abc import Callable, Iterator

import pytest

from riverrun.simulation.world import World


@pytest.fixture
def make_world() -> Iterator[Callable[[int], World]]:
    worlds: list[World] = []

    def make(seed: int = 1) -> World:
        worlds.append(World(seed))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
