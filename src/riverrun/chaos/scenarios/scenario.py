"""The declaration of a scenario: description, requirements, limits and the function to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.chaos.scenarios.arena import Arena


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario; its name is that of the function."""

    about: str
    happen: Callable[[Arena], None]
    family: str
    has_administrator: bool = False
    has_transactions: bool = False
    """Whether transactional clients run beside the others."""
    has_groups: bool = False
    """Whether a group of processes reads the topic."""
    has_moves: bool = False
    """Whether partitions move all the time."""
    small_disk_bytes: int = 0
    """The size of every node's file system; 0 means the machine's own file system."""
    settings: Mapping[str, str] = field(default_factory=dict)
    needs_agent: bool = False
    nodes_min: int = 3
    """A run that was started with fewer nodes has this many."""
    may_fail_sends: bool = True
    """Whether sends may fail; retries cover all but long outages."""
    silence_seconds_max: float | None = None
    """The longest accepted pause between acknowledgements."""
    discards_cluster: bool = False
    """Whether the next scenario needs a new cluster."""

    @property
    def name(self) -> str:
        return self.happen.__name__.replace("_", "-")
