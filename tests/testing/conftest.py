"""Clusters that several tests of `riverrun.testing` use; each test has topics of its own."""

from collections.abc import Iterator

import pytest

from riverrun.testing import Cluster


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(nodes=3) as cluster:
        yield cluster
