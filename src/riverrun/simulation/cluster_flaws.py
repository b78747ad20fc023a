"""Bugs on purpose in the code of a cluster: each is one that the simulation must see.

While ``planted`` lasts, one rule of the product is replaced by what somebody might have written who
had not heard of its reason. The product itself knows nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class ClusterFlaw(Enum):
    VOTES_TWICE = "a voter forgets for whom it voted when it starts again"


@contextmanager
def planted(flaw: ClusterFlaw | None) -> Iterator[None]:
    """For as long as a run lasts; worlds do not run side by side in one process."""
    yield
