"""What an error that nobody expected says, and whether the node may go on after it."""

from __future__ import annotations

import traceback
from typing import Final

STATEFUL_PACKAGES: Final = (
    "storage",
    "metadata",
    "replication",
    "coordinator",
    "cluster",
    "raft",
)


def changes_state(error: AssertionError) -> bool:
    """Whether the assertion that failed guards state, by the package that it stands in."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return any(f"/riverrun/{package}/" in last for package in STATEFUL_PACKAGES)


def reason_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(reason_of(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
