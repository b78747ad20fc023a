"""Which fault lies on which way: pure rules that the proxy asks for each direction of a connection.

A way is (source, target, channel): bytes that the source sends to the target over connections that
were opened to a listener of that channel, by whichever of the two. LinkFaults of single ways make
asymmetric partitions; ``ANY`` stands for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ANY = "*"
CLIENTS = "clients"
"""Whoever is no node."""


class Mode(StrEnum):
    CLEAR = "clear"
    HOLD = "hold"
    """Bytes wait until the fault is over, as TCP retransmits after a partition."""
    DROP = "drop"
    """Bytes vanish; connections that lost some are reset when the fault is over, not before."""
    CUT = "cut"
    """Connections are reset, new ones too."""


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
    """The faults that are on; later ones beat earlier ones where both cover a way."""

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
