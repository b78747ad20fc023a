"""Planted bugs in access control that the simulation must find with its users."""

from __future__ import annotations

from enum import Enum
from typing import Any

from riverrun.security.principal import NODE
from riverrun.server.requests import envelope
from riverrun.server.security.access import AccessControl


class AccessBug(Enum):
    FORWARDED_PRINCIPAL_IS_IGNORED = "the controller gives forwarded requests the broker's rights"
    DECISIONS_OUTLIVE_RULES = "a broker keeps a decision after the rule that made it is removed"


def access_with(bug: AccessBug) -> list[tuple[Any, str, Any]]:
    """What to replace, as (owner, name, replacement)."""
    match bug:
        case AccessBug.FORWARDED_PRINCIPAL_IS_IGNORED:
            return [(envelope, "decode_principal", lambda data: NODE)]
        case AccessBug.DECISIONS_OUTLIVE_RULES:
            sound: Any = AccessControl.authorizer
            return [(AccessControl, "authorizer", property(_keep_decisions(sound.fget)))]


def _keep_decisions(sound: Any) -> Any:
    def authorizer(self: Any) -> Any:
        before = self._current
        now = sound(self)
        if now is not before:
            now._cache.update({one: allowed for one, allowed in before._cache.items() if allowed})
        return now

    return authorizer
