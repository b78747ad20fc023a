"""Settings that can be given in several units, and which of several sources wins."""

from collections.abc import Mapping
from typing import TypeVar

Text = TypeVar("Text")

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.hours",),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
}
"""The finest name first; it wins over coarser ones of the same source."""


def family(name: str) -> tuple[str, ...]:
    """A name with its synonyms, the finest first."""
    for fine, coarse in SYNONYMS.items():
        if name == fine or name in coarse:
            return (fine, *coarse)
    return (name,)


def overridden(weaker: Mapping[str, Text], stronger: Mapping[str, Text]) -> dict[str, Text]:
    """Both sources of settings, the stronger one winning.

    Within one source the finer synonym wins; a coarser one of a stronger source must not lose to
    it, or a flag would be ignored because of the file.
    """
    hidden = {synonym for name in stronger for synonym in family(name)}
    kept = {name: text for name, text in weaker.items() if name not in hidden}
    return kept | dict(stronger)
