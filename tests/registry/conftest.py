"""Shared fixtures."""

from collections.abc import Iterator

import pytest

from tests.registry.server import RegistryServer, serve_registry


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serve_registry() as server:
        yield server
