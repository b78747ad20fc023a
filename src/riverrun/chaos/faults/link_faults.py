"""Pure rules: which fault applies to which direction of traffic.

A direction is (source, target, channel): bytes that the source sends to the target, on connections
to a listener of that channel that either of them opened. A fault of one direction makes an
asymmetric partition. ``ANY`` matches all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ANY = "*"
CLIENTS = "clients"
"""The source or target of traffic that is not between two nodes."""


class Mode(StrEnum):
    CLEAR = "clear"
    HOLD = "hold"
    """Bytes wait until the fault ends, as TCP retransmits after a partition."""
    DROP = "drop"
    """Bytes are dropped; connections that lost some are reset when the fault ends."""
    CUT = "cut"
    """Existing and new connections are reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFault:
    mode: Mode = Mode.CLEAR
    delay_ms: float = 0.0
    bytes_per_second: int = 0
    """0 for no limit."""

    @property
    def is_clear(self) -> bool:
        return self == CLEAR

    @property
    def blocks(self) -> bool:
        return self.mode is not Mode.CLEAR


CLEAR = LinkFault()


@dataclass(frozen=True, slots=True)
class Direction:
    source: str
    target: str
    channel: str = ANY


class LinkFaults:
    """The active faults; a later fault takes precedence for a direction that both match."""

    def __init__(self) -> None:
        self._rules: dict[Direction, LinkFault] = {}

    def put(self, way: Direction, fault: LinkFault) -> None:
        self._rules.pop(way, None)
        if not fault.is_clear:
            self._rules[way] = fault

    def clear(self) -> None:
        self._rules.clear()

    def on(self, source: str, target: str, channel: str) -> LinkFault:
        for rule, fault in reversed(self._rules.items()):
            if (
                rule.source in (ANY, source)
                and rule.target in (ANY, target)
                and rule.channel in (ANY, channel)
            ):
                return fault
        return CLEAR
