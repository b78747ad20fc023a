"""Failed invariants that must stop the node.

A failed assertion is a bug. Before a request has changed anything, it costs the client's
connection. During a change of stored or replicated state it may leave that state half changed, so
the node must stop. ``state_change`` marks such code:

    with state_change:
        self.log.append(records)

The hot path uses ``except AssertionError`` and raises ``InvariantViolation`` itself, which costs
nothing unless the assertion fails.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final


class InvariantViolation(AssertionError):
    """An assertion failed while state was changing: the node must stop."""


class StateChange:
    """Turns a failed assertion into an ``InvariantViolation``. It has no state: one object serves
    all callers, also nested ones."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, AssertionError) and not isinstance(error, InvariantViolation):
            raise InvariantViolation(str(error)) from error


state_change: Final = StateChange()
