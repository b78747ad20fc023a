"""What a scenario is: a name, a sentence, what it needs, what it may cost, and what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.chaos.scenarios.arena import Arena


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of trouble."""

    about: str
    happen: Callable[[Arena], None]
    family: str
    has_administrator: bool = False
    small_disk_bytes: int = 0
    """Every node's file system has this size; 0 for the machine's own."""
    settings: Mapping[str, str] = field(default_factory=dict)
    needs_agent: bool = False
    nodes_min: int = 3
    may_fail_sends: bool = True
    """Whether a client may see an error; retries allow for all but long outages."""
    silence_seconds_max: float | None = None
    """The longest pause between acknowledgements that is accepted."""
    discards_cluster: bool = False
    """Whether the cluster is of no use to the next scenario."""

    @property
    def name(self) -> str:
        return self.happen.__name__.replace("_", "-")
