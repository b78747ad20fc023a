"""Warnings that would come with every try of a client, shown once in a while for each subject."""

from __future__ import annotations

from msgspec import Struct, field

INTERVAL_SECONDS = 10.0
SUBJECTS_MAX = 1000


class Sparing(Struct):
    """When each subject was last spoken of; with too many of them the next ones stay silent."""

    _said: dict[str, float] = field(default_factory=dict)

    def may(self, subject: str, now: float) -> bool:
        """Whether to speak of it now, by a monotonic clock in seconds."""
        if now - self._said.get(subject, -INTERVAL_SECONDS) < INTERVAL_SECONDS:
            return False
        if subject not in self._said and len(self._said) >= SUBJECTS_MAX:
            self._said = {s: at for s, at in self._said.items() if now - at < INTERVAL_SECONDS}
            if len(self._said) >= SUBJECTS_MAX:
                return False
        self._said[subject] = now
        return True
